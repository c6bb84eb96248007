// The worker: loads the module, hands it the page's events, and does its work in pieces, between which events are taken
// in.
"use strict";

const MODULE = "llama-trace.wasm.gz";
const KINDS = ["copy", "download", "keep", "fetch", "read"];
let tracer = null;
let begun = false;
// A new size of the screen, for the page that paints its first cells.
let resized = null;
// The message of a panic. The module cannot go on after one.
let panic = "";

const decoder = new TextDecoder();
const encoder = new TextEncoder();
const read = (place, length) => decoder.decode(new Uint8Array(tracer.memory.buffer, place, length));
const copied = (place, length) => new Uint8Array(tracer.memory.buffer, place, length).slice();

// Writes a text into the module's input. Its memory may move when it grows, so it is looked up afterwards.
function say(text) {
  const bytes = encoder.encode(text);
  const place = tracer.room(bytes.length) >>> 0;
  if (place === 0) throw new Error(`there is no memory for a text of ${bytes.length} bytes`);
  new Uint8Array(tracer.memory.buffer, place, bytes.length).set(bytes);
}

const imports = {
  page: {
    now: () => performance.timeOrigin + performance.now(),
    random: () => crypto.getRandomValues(new Uint32Array(1))[0],
    failed: (place, length) => (panic = read(place, length)),
  },
};

// The file as the server stores it: compressed, or decompressed by a server that marks it as such.
async function unpacked(answer) {
  const reader = answer.body.getReader();
  const first = await reader.read();
  const stream = new ReadableStream({
    start(out) {
      if (first.value) out.enqueue(first.value);
      if (first.done) out.close();
    },
    async pull(out) {
      const { done, value } = await reader.read();
      if (done) out.close();
      else out.enqueue(value);
    },
  });
  const packed = first.value && first.value[0] === 0x1f && first.value[1] === 0x8b;
  const bytes = packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream;
  return new Response(bytes, { headers: { "Content-Type": "application/wasm" } });
}

async function load() {
  const answer = await fetch(MODULE);
  if (!answer.ok) throw new Error(`${MODULE}: the server answered ${answer.status}`);
  const { instance } = await WebAssembly.instantiateStreaming(unpacked(answer), imports);
  tracer = instance.exports;
  postMessage({ kind: "ready" });
}

function outcomes() {
  for (let kind = tracer.outcome(); kind >= 0; kind = tracer.outcome()) {
    const [place, length, data, bytes] = [0, 1, 2, 3].map((part) => tracer.outcome_part(part) >>> 0);
    const text = read(place, length);
    switch (KINDS[kind]) {
      case "download":
        postMessage({ kind: "download", name: text, bytes: copied(data, bytes) });
        break;
      case "keep":
        postMessage({ kind: "keep", key: text, text: read(data, bytes) });
        break;
      case "fetch":
        postMessage({ kind: "fetch", name: text });
        break;
      default:
        postMessage({ kind: KINDS[kind], text });
    }
  }
}

function draw() {
  const length = tracer.draw();
  if (length > 0) {
    const cells = copied(tracer.cells_place(), length).buffer;
    postMessage({ kind: "cells", cells, screen: resized }, [cells]);
    resized = null;
  }
  outcomes();
}

// A message to this worker comes after the events that wait already, and sooner than any timer.
const turn = new MessageChannel();
let waits = false;
let timer = 0;
turn.port1.onmessage = () => {
  waits = false;
  guarded(work);
};
function soon() {
  if (!waits) {
    waits = true;
    turn.port2.postMessage(0);
  }
}
function work() {
  clearTimeout(timer);
  const wait = tracer.work();
  draw();
  if (wait === 0) soon();
  else if (wait > 0) timer = setTimeout(() => guarded(work), wait);
}

function message(text, failure) {
  say(text);
  tracer.message(failure);
  soon();
}

// Bytes of a file that are read at once.
const PART = 2 ** 24;
// The memory of a module, and the longest buffer in it.
const MEMORY = 2 ** 32;
const LONGEST = 2 ** 31 - 1;
let taking = Promise.resolve();

// Reads files into the module's memory, and opens them. The memory for all of them is reserved first.
async function take({ files, link }) {
  try {
    for (const { name, file } of files) {
      if (file.size > LONGEST || !tracer.reserve(file.size)) {
        const limit = file.size > LONGEST ? `a file may have ${LONGEST} bytes in this page` : `this page has ${MEMORY} bytes of memory for everything`;
        throw new Error(`${name}: its ${file.size} bytes do not fit: ${limit}; use llama-trace in a terminal`);
      }
    }
    for (const [number, { name, file }] of files.entries()) {
      if (file.size > PART) message(`reading ${name}`, false);
      const place = tracer.file_place(number) >>> 0;
      for (let at = 0; at < file.size; at += PART) {
        const part = new Uint8Array(await file.slice(at, at + PART).arrayBuffer());
        new Uint8Array(tracer.memory.buffer, place + at, part.length).set(part);
      }
    }
  } catch (error) {
    return guarded(() => {
      tracer.abandon();
      message(error instanceof DOMException ? `the files cannot be read: ${error.message}` : error.message, true);
    });
  }
  guarded(() => {
    for (const { name } of files) {
      say(name);
      tracer.file();
    }
    say(link ?? "");
    tracer.open(link !== null);
    soon();
  });
}

const does = {
  begin({ link, stored, screen, light }) {
    resized = screen;
    for (const text of stored) {
      say(text);
      tracer.store();
    }
    say(link);
    begun = tracer.begin(screen.columns, screen.rows, light);
    if (!begun) throw new Error("the built-in model cannot be opened");
  },
  key({ key, modifiers }) {
    say(key);
    tracer.key(modifiers);
  },
  mouse({ use, column, row, modifiers }) {
    tracer.mouse(use, column, row, modifiers);
  },
  paste({ text }) {
    say(text);
    tracer.paste();
  },
  resize({ screen }) {
    resized = screen;
    tracer.resize(screen.columns, screen.rows);
    tracer.redraw();
  },
  paper({ light }) {
    tracer.set_paper(light);
  },
  fail({ text }) {
    message(text, true);
  },
  // One set of files after the other.
  files(set) {
    taking = taking.then(() => take(set));
  },
  // For tests: the screen as text.
  screen({ styled }) {
    const length = tracer.screen(styled);
    postMessage({ kind: "screen", text: read(tracer.screen_text(), length) });
  },
};

function guarded(use) {
  try {
    use();
  } catch (error) {
    // The module ends without a panic if it gets no memory.
    const memory = error instanceof WebAssembly.RuntimeError ? `there is no more memory: ${tracer.memory.buffer.byteLength} bytes are in use` : "";
    postMessage({ kind: "failed", text: panic || memory || String(error.message ?? error) });
    close();
  }
}

onmessage = ({ data }) => {
  if (!tracer || (!begun && data.kind !== "begin")) return;
  guarded(() => {
    does[data.kind](data);
    soon();
  });
};

load().catch((error) => postMessage({ kind: "failed", text: error.message }));
