// The page without a network and as the program serves it, and its speed.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { basename, join } from "node:path";

import { until } from "./browser.mjs";
import { folder, here, native, network, open, program, work } from "./harness.mjs";
import { stories15M } from "./models.mjs";

export default {
  async "the page works without a network after the first visit"(browser) {
    await open(browser);
    await browser.run("navigator.serviceWorker.ready.then(() => 0)");
    // The service worker controls the pages that are opened after it was installed.
    await open(browser);
    await until(() => browser.run("navigator.serviceWorker.controller !== null"), "the service worker");
    network.works = false;
    try {
      await open(browser, "#lesson=1");
      await browser.shows("scene 1 of");
    } finally {
      network.works = true;
    }
  },

  async "the program writes and serves the page"(browser) {
    const out = join(work, "out");
    try {
      native("page", "--out", out);
    } catch (error) {
      if (!/made without the web page/.test(error.stderr)) throw error;
      console.log("    left out: the program was built without LLAMA_TRACE_PAGE");
      return;
    }
    for (const name of readdirSync(folder)) {
      // The program packs the module again, with its own built-in model.
      const contents = (at) => (name.endsWith(".gz") ? gunzipSync(readFileSync(join(at, name))) : readFileSync(join(at, name)));
      assert.ok(contents(out).equals(contents(folder)), name);
    }
    assert.throws(() => native("page", "--out", out), /exists already/);
    assert.throws(() => native("page"), /--out <DIR>.*--serve/);
    native("page", "--out", out, "--force");
    const serves = spawn(program, ["page", "--serve"], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      const [line] = await once(serves.stdout, "data");
      const served = String(line).trim();
      await browser.go(served);
      await browser.shows(/step 1 of/, 60000);
      assert.equal((await fetch(`${served}none`)).status, 404);
      assert.equal((await fetch(served, { method: "POST" })).status, 405);
      const head = await fetch(`${served}page.js`, { method: "HEAD" });
      assert.equal(Number(head.headers.get("content-length")), readFileSync(join(folder, "page.js")).length);
    } finally {
      serves.kill("SIGINT");
      await once(serves, "exit");
    }
  },

  async "the program adds a lesson and a trace to the page"(browser) {
    const added = join(work, "added");
    mkdirSync(added);
    const [lesson, trace] = [join(added, "class.md"), join(added, "class.trace")];
    writeFileSync(lesson, "# The first look\n<!-- prompt: The big dog -->\n\n## Scores\n\n<!-- scene: p0/L1/scores[h=0,t=last] -->\n\nHow well does each key fit?\n");
    native("record", "--prompt", "A fox", "-n", "2", "--keep", "all", "--out", trace);
    const out = join(work, "class");
    native("page", "--out", out, "--lesson", lesson, "--trace", trace);
    for (const file of [lesson, trace]) assert.ok(readFileSync(join(out, basename(file))).equals(readFileSync(file)));
    const serves = spawn(program, ["page", "--serve", "--lesson", lesson, "--trace", trace], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      let lines = "";
      serves.stdout.on("data", (more) => (lines += more));
      const [, ofLesson, ofTrace] = await until(() => lines.match(/^.*\n(.*#lesson=.*)\n(.*#trace=.*)\n/), "the links");
      await browser.go(ofLesson);
      await browser.shows("The first look", 60000);
      await browser.keys(" ");
      await browser.shows("How well does each key fit?");
      await browser.go(`${ofTrace}&at=p1/logits`);
      await browser.shows(/class\.trace[\s\S]*logits/);
    } finally {
      serves.kill("SIGINT");
      await once(serves, "exit");
    }
  },

  async "the first screen and the tokens come fast"(browser) {
    await open(browser, "#prompt=Once%20upon%20a%20time");
    const first = await until(() => browser.run("Number(document.documentElement.dataset.first ?? 0)"), "a drawing");
    const started = Date.now();
    await open(browser, "#prompt=Once%20upon%20a%20time&passes=64&at=p63/logits");
    await until(() => browser.run("document.documentElement.dataset.first ?? ''"), "a drawing");
    const begun = await browser.run("performance.timeOrigin + Number(document.documentElement.dataset.first)");
    await browser.shows(/pass 63/, 60000);
    const ended = await browser.run("performance.timeOrigin + Number(document.documentElement.dataset.last)");
    console.log(`    the first screen after ${first.toFixed(0)} ms; 64 passes, recorded, in ${(ended - begun).toFixed(0)} ms (${Date.now() - started} ms with the test)`);
  },

  async "keys are answered fast"(browser) {
    await open(browser);
    const times = [];
    for (let turn = 0; turn < 100; turn++) {
      times.push(await browser.run(`new Promise((done) => { const drawn = document.documentElement.dataset.drawn; const begun = performance.now(); const watch = new MutationObserver(() => { watch.disconnect(); done(performance.now() - begun); }); watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-drawn"] }); press("n"); setTimeout(() => done(performance.now() - begun), 2000); })`));
    }
    times.sort((a, b) => a - b);
    console.log(`    from a key to its cells: median ${times[50].toFixed(1)} ms, 95 % within ${times[95].toFixed(1)} ms`);
  },

  // The figures are for people: a machine that does other work is slower.
  async "tokens per second in the page"(browser) {
    copyFileSync(join(here, "bench.js"), join(work, "bench.js"));
    await open(browser);
    const cases = [["the built-in model", "null", 120, 4], ["a model with the shape of stories15M", `document.querySelector("#files").files[0]`, 40, 2]];
    const large = join(work, "stories15M.bin");
    stories15M(large);
    await browser.run(`$("files").addEventListener("change", (event) => event.stopImmediatePropagation(), { capture: true }); 0`);
    await browser.choose("#files", [large]);
    for (const [what, file, count, rounds] of cases) {
      const result = JSON.parse(await browser.run(`new Promise((done, failed) => { const bench = new Worker("bench.js"); bench.onmessage = ({ data }) => { bench.terminate(); done(JSON.stringify(data)); }; bench.onerror = ({ message }) => failed(new Error(message)); bench.postMessage({ file: ${file}, count: ${count}, rounds: ${rounds}, link: "" }); })`));
      assert.equal(result.error, undefined);
      assert.match(result.screen, new RegExp(`pass ${count}`));
      // In the first round, the browser still compiles the module.
      const speed = (times) => {
        const sum = times.reduce((a, b) => a + b);
        const sorted = times.toSorted((a, b) => a - b);
        return `${((1000 * times.length) / sum).toFixed(0)} tokens a second, ${(1000 / sorted[times.length >> 1]).toFixed(0)} in the median`;
      };
      const cold = result.times.splice(0, count);
      console.log(`    ${what}: ${speed(result.times)}; the first round: ${speed(cold)}`);
    }
    rmSync(large);
  },
};
