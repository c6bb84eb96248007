// A worker that measures the page's module: tokens per second of the built-in model or of a file, and of the passes that
// the tracer runs. It is served beside the page, so it has the page's module and its policy.
"use strict";

const encoder = new TextEncoder();
let tracer = null;
const imports = {
  page: {
    now: () => performance.timeOrigin + performance.now(),
    random: () => crypto.getRandomValues(new Uint32Array(1))[0],
    failed: (place, length) => console.error(new TextDecoder().decode(new Uint8Array(tracer.memory.buffer, place, length))),
  },
};

function say(text) {
  const bytes = encoder.encode(text);
  const place = tracer.room(bytes.length) >>> 0;
  new Uint8Array(tracer.memory.buffer, place, bytes.length).set(bytes);
}

// Works until nothing is left to do, without drawing.
function work() {
  for (let turn = 0; turn < 1e6 && tracer.work() === 0; turn++);
}

function press(...keys) {
  for (const key of keys) {
    say(key);
    tracer.key(0);
  }
  work();
}

function screen() {
  const length = tracer.screen(false);
  return new TextDecoder().decode(new Uint8Array(tracer.memory.buffer, tracer.screen_text(), length));
}

async function measure({ file, count, rounds, link }) {
  const packed = await fetch("llama-trace.wasm.gz");
  const bytes = new Response(packed.body.pipeThrough(new DecompressionStream("gzip")), { headers: { "Content-Type": "application/wasm" } });
  tracer = (await WebAssembly.instantiateStreaming(bytes, imports)).instance.exports;
  const times = [];
  for (let round = 0; round < rounds; round++) {
    say(link);
    tracer.begin(120, 40, false);
    work();
    if (file) {
      const contents = new Uint8Array(await file.arrayBuffer());
      if (!tracer.reserve(contents.length)) throw new Error("there is no memory for the file");
      const place = tracer.file_place(0) >>> 0;
      new Uint8Array(tracer.memory.buffer, place, contents.length).set(contents);
      say(file.name);
      tracer.file();
      say("");
      tracer.open(false);
      work();
    }
    for (let token = 0; token < count; token++) {
      const begun = performance.now();
      press("t");
      times.push(performance.now() - begun);
    }
  }
  postMessage({ times, screen: screen() });
}

onmessage = ({ data }) => measure(data).catch((error) => postMessage({ error: String(error) }));
