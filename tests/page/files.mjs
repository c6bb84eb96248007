// Files that a user opens.
import assert from "node:assert/strict";
import { truncateSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { Browser, KEY } from "./browser.mjs";
import { address, drop, fixtures, native, open, work } from "./harness.mjs";
import { stories15M, vocabulary } from "./models.mjs";

// Two files of this size fit into the page's memory, three do not.
const LARGE = 1_900_000_000;
const whole = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

export default {
  async "a dropped GGUF file, a trace and a lesson open"(browser) {
    await open(browser);
    const trace = join(work, "run.trace");
    rmSync(trace, { force: true });
    native("record", "--prompt", "The big dog", "-n", "3", "--keep", "all", "--out", trace);
    await drop(browser, ["run.trace", readFileSync(trace)]);
    await browser.shows(/^ run\.trace/m);
    await browser.keys("n", "n");
    await browser.shows(/step 3 of/);
    // The same trace by its link.
    await open(browser, "#trace=run.trace&at=p2/logits");
    await browser.shows(/run\.trace[\s\S]*logits/);
    await drop(browser, ["small.gguf", readFileSync(join(fixtures, "formats/gguf/f16.gguf"))]);
    await browser.shows(/^ small\.gguf/m);
    await drop(browser, ["damaged.gguf", Buffer.from("GGUF\x03\0\0\0damaged")]);
    await browser.shows(/GGUF|damaged|cut off/);
    await drop(browser, ["hostile.md", Buffer.from("# T\n<!-- scene: nowhere/at/all -->\n<!-- ask: riddle -->\n")]);
    await browser.shows(/lesson/);
    await browser.keys("n");
  },

  async "a dropped folder with safetensors opens"(browser) {
    await open(browser);
    const there = join(fixtures, "builtin");
    if (browser.name === "chromium") {
      // The folder itself, dragged from the disk.
      for (const type of ["dragEnter", "dragOver", "drop"]) {
        await browser.chromium("Input.dispatchDragEvent", { type, x: 300, y: 300, data: { items: [], files: [there], dragOperationsMask: 1 } });
      }
    } else {
      // The entries of a dropped folder, as the browser gives them.
      const files = whole.map((name) => [name, readFileSync(join(there, name)).toString("base64")]);
      await browser.run(`{
        const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
        const entries = ${JSON.stringify(files)}.map(([name, text]) => ({ name, isFile: true, file: (done) => done(new File([bytes(text)], name)) }));
        const parts = [entries.slice(0, 2), entries.slice(2), []];
        const folder = { name: "builtin", isDirectory: true, createReader: () => ({ readEntries: (done) => done(parts.shift()) }) };
        dropped({ files: [new File([], "builtin")], items: [{ webkitGetAsEntry: () => folder }] }).then(take);
      } 0`);
    }
    await browser.shows(/^ builtin /m);
    await browser.shows(/Once/);
    await browser.keys("/", ..."prompt A fox", KEY.enter);
    await browser.shows("fox");
    // No link names a model that is only here.
    await browser.keys("y");
    await browser.shows("no link can name");
  },

  async "a llama2.c model and its vocabulary open together"(browser) {
    await open(browser);
    await drop(browser, ["model.bin", readFileSync(join(fixtures, "formats/llama2c/v0.bin"))], ["tokenizer.bin", vocabulary()]);
    await browser.shows(/^ model\.bin/m);
    await browser.keys("/", ..."prompt bad cab", KEY.enter);
    await browser.shows("cab");
  },

  async "several files are chosen in the picker"(browser) {
    await open(browser);
    await browser.choose("#files", whole.map((name) => join(fixtures, "builtin", name)));
    await browser.shows(/^ model /m);
    await browser.keys("n");
    await browser.shows(/step 2 of/);
    assert.equal(await browser.run("document.activeElement.id"), "keys");
    // Weights without their configuration are no model.
    await browser.choose("#files", [join(fixtures, "builtin/tokenizer_config.json")]);
    await browser.shows("neither a model");
    await browser.keys("n");
    await browser.shows(/step 3 of/);
  },

  async "what does not fit is refused with its size"(browser) {
    await open(browser);
    await browser.shows("is next");
    const large = join(work, "large.gguf");
    // Files without contents on the disk.
    writeFileSync(large, "GGUF");
    try {
      truncateSync(large, 3 * 2 ** 30);
      await browser.choose("#files", [large]);
      await browser.shows(/large\.gguf: its 3221225472 bytes do not fit: a file may have/);
      const parts = [1, 2, 3].map((part) => join(work, `part-${part}.safetensors`));
      for (const part of parts) {
        writeFileSync(part, "");
        truncateSync(part, LARGE);
      }
      await browser.choose("#files", parts);
      await browser.shows(/part-3\.safetensors: its 1900000000 bytes do not fit: this page has 4294967296 bytes/, 60000);
      await browser.keys("n");
      await browser.shows(/step 2 of/);
      // The memory of the refused files is free again.
      await drop(browser, ["small.gguf", readFileSync(join(fixtures, "formats/gguf/f16.gguf"))]);
      await browser.shows(/^ small\.gguf/m);
      for (const part of parts) rmSync(part);
    } finally {
      rmSync(large, { force: true });
    }
  },

  async "a trace of another model opens without its weights"(browser) {
    const trace = join(work, "other.trace");
    rmSync(trace, { force: true });
    native("record", "--model", join(fixtures, "formats/gguf/f16.gguf"), "--ids", "1,5,9", "-n", "2", "--out", trace);
    await open(browser, "#trace=other.trace");
    await browser.shows(/^ other\.trace/m);
    await browser.keys("n", "n", "n");
    await browser.shows(/step 4 of/);
    // What needs the weights says so.
    await browser.keys("/", ..."L1/wq", KEY.enter);
    await browser.shows(/weights|model/);
    await browser.keys(KEY.escape, "/", ..."prompt A", KEY.enter);
    await browser.shows(/model/);
    await browser.keys("/", ..."logits", KEY.enter);
    await browser.shows(/logits/);
  },

  async "a model that leaves no room for its run is refused with the size"(browser) {
    if (browser.name !== "chromium") return;
    const large = join(work, "stories15M.bin");
    stories15M(large);
    // The weights fit into this memory, the KV cache does not.
    const small = await Browser.chromium("--js-flags=--wasm-max-mem-pages=1050");
    try {
      await small.open(address, 960, 664);
      await open(small);
      await small.shows("is next");
      await small.choose("#files", [large]);
      await small.shows(/the KV cache for 256 tokens[\s\S]*room for 3538944 bytes/, 60000);
      await small.keys("n");
      await small.shows(/step 2 of/);
    } finally {
      await small.close();
      rmSync(large);
    }
  },
};
