// Models that tests write.
import { writeFileSync } from "node:fs";

// Writes a llama2.c model with the shape of stories15M and random weights.
export function stories15M(path) {
  const [dim, hidden, layers, heads, vocab, context] = [288, 768, 6, 6, 32000, 256];
  const head = Buffer.from(Int32Array.of(dim, hidden, layers, heads, heads, vocab, context).buffer);
  const layer = 2 * dim + 4 * dim * dim + 3 * dim * hidden;
  const weights = new Float32Array(vocab * dim + layers * layer + dim + context * (dim / heads));
  let seed = 1;
  for (const at of weights.keys()) {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    weights[at] = (seed / 2 ** 32 - 0.5) / 4;
  }
  writeFileSync(path, Buffer.concat([head, Buffer.from(weights.buffer)]));
}

// A vocabulary of llama2.c for the 40 tokens of its fixtures: three special tokens, and characters.
export function vocabulary() {
  const tokens = ["<unk>", "\n<s>\n", "\n</s>\n", " ", ..."abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"];
  const all = tokens.map((token) => {
    const head = Buffer.alloc(8);
    head.writeFloatLE(0, 0);
    head.writeUInt32LE(Buffer.byteLength(token), 4);
    return Buffer.concat([head, Buffer.from(token)]);
  });
  const longest = Buffer.alloc(4);
  longest.writeUInt32LE(7);
  return Buffer.concat([longest, ...all]);
}
