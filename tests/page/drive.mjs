// Tests the web page in real browsers, with real keys and clicks.
//
//   node --experimental-websocket tests/page/drive.mjs FOLDER PROGRAM [chromium] [firefox]
//
// FOLDER is a page that `.ci/page` built; PROGRAM is a native build of llama-trace, whose screens must be equal to those
// of the page. With LLAMA_TRACE_PICTURES=DIR, each test leaves a picture of its last screen there.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync, copyFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, resolve } from "node:path";

import { Browser, KEY, pause, until } from "./browser.mjs";

const [folder, program, ...names] = process.argv.slice(2);
const pictures = process.env.LLAMA_TRACE_PICTURES;
const only = process.env.LLAMA_TRACE_ONLY;
const work = mkdtempSync(join(tmpdir(), "page-"));
// A folder below the root of the server: the page works under any path.
const BELOW = "/a/class/";
// Every view, with a step that it fits.
const VIEWS = [
  ["p0/tokens", "list"], ["p0/logits", "largest"], ["p0/nucleus", "largest"], ["p0/L1/xq", "heatmap"],
  ["p0/L1/masked_scores[h=2]", "numbers"], ["p0/L1/softmax", "heads"], ["p0/L0/ffn_hidden", "overview"],
  ["p0/L1/scores", "histogram"], ["p0/probs", "sampler"], ["p0/L1/xq_rope", "flow"], ["p0/L1/xq_rope", "pass"],
  ["p0/L1/attn_residual", "residual"], ["p0/L2/ffn_hidden", "neurons"], ["p0/tokens", "tokens"],
  ["p0/L1/softmax", "layers"], ["p0/L1/softmax", "bars"], ["p0/L1/cache_k", "cache"], ["p0/L1/xq_rope", "rope"],
  ["p0/rope_cos", "rope"], ["p0/L2/ffn_residual", "lens"], ["p0/logits", "attribution"],
];
const SIZES = [[960, 640, 120, 40], [640, 384, 80, 24]];

// A server without special headers, as simple ones are.
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".gz": "application/gzip" };
let offline = false;
const server = createServer((request, response) => {
  if (offline) return response.destroy();
  const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
  const name = path.startsWith(BELOW) ? path.slice(BELOW.length) || "index.html" : "/";
  if (!readdirSync(work).includes(name)) return response.writeHead(404).end();
  response.writeHead(200, { "Content-Type": TYPES[extname(name)] ?? "application/octet-stream" });
  response.end(readFileSync(join(work, name)));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
const address = `http://127.0.0.1:${server.address().port}${BELOW}`;

const native = (...args) => execFileSync(program, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
const fixtures = resolve(import.meta.dirname ?? ".", "../../fixtures");

// The screen that the program draws for the same place, with the same kernel as in the page.
function snapshot(kernel, at, view, [columns, rows], light) {
  const file = join(work, "snapshot.ansi");
  const args = ["snapshot", "--cpu-kernel", kernel, "--prompt", "Once upon a time", "--at", at, "--view", view, "--size", `${columns}x${rows}`, "--out", file, "--force"];
  native(...args, ...(light ? ["--light"] : []));
  return readFileSync(file, "utf8");
}

// Waits until the page's screen is equal to the program's, cell by cell, with colours.
async function equal(browser, kernel, at, view, size) {
  const expected = snapshot(kernel, at, view, size, await browser.run("light.matches"));
  let page = "";
  await until(async () => (page = await browser.screen(true)) === expected, `${at} ${view}`, 10000).catch(() => {
    const [ours, theirs] = [page, expected].map((text) => text.split("\n"));
    const row = ours.findIndex((line, row) => line !== theirs[row]);
    assert.fail(`${at} as ${view} at ${size}, row ${row}:\n${ours[row]}\x1b[m\n${theirs[row]}\x1b[m`);
  });
}

// Drops files on the page, as a user does.
async function drop(browser, ...files) {
  const parts = files.map(([name, bytes]) => `new File([Uint8Array.from(atob("${Buffer.from(bytes).toString("base64")}"), (c) => c.charCodeAt(0))], ${JSON.stringify(name)})`);
  await browser.run(`{ const data = new DataTransfer(); for (const file of [${parts}]) data.items.add(file); dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true })); } 0`);
}

const open = async (browser, link = "") => {
  await browser.go("about:blank");
  await browser.go(`${address}${link}`);
  await browser.shows(/step \d+ of|expected|fetching/, 60000);
};

const tests = {
  async "the first screen comes, and keys step through the pass"(browser) {
    await open(browser);
    await browser.shows("Once");
    await browser.keys("n");
    await browser.shows(/step 2 of/);
    await browser.keys("p", KEY.right);
    await browser.shows(/step 1 of/);
    await browser.keys("/", ..."softmax", KEY.enter);
    await browser.shows(/L\d\/softmax|softmax .*head/);
    await browser.keys("?");
    await browser.shows("Walking through the pass");
    await browser.keys(KEY.escape);
  },

  async "the values are those of the program"(browser, kernel) {
    await open(browser, "#at=p0/L1/softmax[h=2]&view=numbers");
    await browser.keys(KEY.escape);
    await browser.shows("softmax");
    await equal(browser, kernel, "p0/L1/softmax[h=2]", "numbers", [120, 40]);
  },

  async "a click goes where it points, and the wheel scrolls"(browser) {
    await open(browser);
    const screen = await browser.shows("rope_cos");
    const row = screen.split("\n").findIndex((line) => line.includes("rope_cos"));
    await browser.click(3 * 8, row * 16 + 8);
    await browser.shows(/step [2-9]\d* of/);
    await browser.wheel(300, 300, 240);
  },

  async "a prompt runs, tokens follow, and branches begin"(browser) {
    await open(browser);
    await browser.keys("/", ..."prompt A fox", KEY.enter);
    await browser.shows("fox");
    await browser.keys("t");
    await browser.shows(/pass 1/);
    await browser.keys("/", ..."logits", KEY.enter);
    await browser.shows("logits");
    await browser.keys(KEY.down, "b");
    await browser.shows(/branches from|continues/);
  },

  async "keys of the browser keep their meaning"(browser) {
    await open(browser);
    await browser.run(`globalThis.passed = []; addEventListener("keydown", (event) => passed.push([event.key, event.ctrlKey, event.defaultPrevented])); 0`);
    // Chromium's own dialogs and tabs do not open in a test, so only the event is looked at.
    for (const name of ["f", "t", "r", "w", "+"]) {
      const prevented = await browser.run(`{ const event = new KeyboardEvent("keydown", { key: ${JSON.stringify(name)}, ctrlKey: true, cancelable: true, bubbles: true }); document.getElementById("keys").dispatchEvent(event); event.defaultPrevented }`);
      assert.equal(prevented, false, name);
    }
    const f5 = await browser.run(`{ const event = new KeyboardEvent("keydown", { key: "F5", cancelable: true, bubbles: true }); document.getElementById("keys").dispatchEvent(event); event.defaultPrevented }`);
    assert.equal(f5, false);
  },

  async "hostile links give one message, and the tracer works"(browser) {
    for (const link of ["#trace=../x", "#trace=https%3A//example.org/a", "#prompt=%3Cscript%3E&at=nowhere", "#edit=L0/xq%3D0", "#lesson=none", `#prompt=${"a".repeat(3000)}`, "#prompt=%", "#at=p0/L99/xq"]) {
      await open(browser, link);
      await browser.shows(/link|address|lesson|layer|L99/);
      await browser.keys("n");
      await browser.shows(/step 2 of/);
    }
    await open(browser, "#prompt=%3Cb%3Ebold%3C/b%3E");
    await browser.shows("<");
    assert.equal(await browser.run("document.querySelectorAll('b').length"), 0);
  },

  async "a dropped GGUF file, a trace and a lesson open"(browser) {
    await open(browser);
    const trace = join(work, "run.trace");
    rmSync(trace, { force: true });
    native("record", "--prompt", "The big dog", "-n", "3", "--keep", "all", "--out", trace);
    await drop(browser, ["run.trace", readFileSync(trace)]);
    await browser.shows("run.trace");
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

  async "the tour goes to its end"(browser) {
    await open(browser, "#lesson=tour");
    await browser.run("localStorage.clear()");
    let last = "";
    for (let turn = 0; turn < 200; turn++) {
      const screen = await browser.screen();
      const scene = /scene (\d+) of (\d+)/.exec(screen) ?? /(\d+)\/(\d+)/.exec(screen);
      if (scene) last = scene[0];
      if (/is left at scene|end of the lesson|finished/i.test(screen)) break;
      await browser.keys(" ");
      await pause(60);
      // An open question: its answer is shown.
      if (/press x|x: show|x shows|x to see/.test(await browser.screen())) await browser.keys("x");
    }
    const stored = await browser.run("localStorage.getItem('llama-trace/lesson/tour')");
    assert.match(stored ?? "", /f$/, `the tour's progress is ${stored}; the last scene was ${last}`);
  },

  async "links are copied, and downloads have the stage and the screen"(browser) {
    await open(browser, "#prompt=A%20fox&at=p0/L1/softmax[h=0]");
    await browser.run(`globalThis.saved = []; globalThis.save = (name, bytes) => saved.push([name, bytes.length]); 0`);
    await browser.shows("softmax");
    await browser.keys("y");
    await browser.shows("copied a link");
    const hash = await until(() => browser.run("location.hash"), "the link");
    assert.match(hash, /^#prompt=A%20fox&at=p0\/L1\/softmax/);
    await browser.keys("e");
    await browser.shows("saved as p0_L1_softmax.npy");
    await browser.keys("S");
    await browser.shows("saved as p0_L1_softmax.svg");
  },

  async "1,000 random keys leave a tracer that answers"(browser) {
    await open(browser);
    const all = [..."npNPgGcdvasTuzfFiCxemMRAEwXbB/?[]{}().,<>=+-*#0$ 123456789hjkl", KEY.enter, KEY.escape, KEY.tab, KEY.backspace, KEY.up, KEY.down, KEY.left, KEY.right];
    let seed = 12345;
    const random = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) / 2 ** 32;
    for (let turn = 0; turn < 50; turn++) {
      await browser.keys(...Array.from({ length: 20 }, () => all[Math.floor(random() * all.length)]));
    }
    await browser.keys(KEY.escape, KEY.escape, KEY.escape, KEY.escape);
    await browser.shows(/step \d+ of/);
  },

  async "every view is equal to the program's, at two sizes"(browser, kernel) {
    for (const [width, height, ...size] of SIZES) {
      await browser.resize(width, height);
      for (const [at, view] of VIEWS) {
        await open(browser, `#at=${at}&view=${view}`);
        // Before the first pass is done, Esc has another meaning.
        await browser.shows("is next");
        await browser.keys(KEY.escape);
        await equal(browser, kernel, at, view, size);
      }
    }
    await browser.resize(960, 640);
  },

  async "the page works without a network after the first visit"(browser) {
    await open(browser);
    await browser.run("navigator.serviceWorker.ready.then(() => 0)");
    // The service worker controls the pages that are opened after it was installed.
    await until(() => browser.run("navigator.serviceWorker.controller !== null"), "the service worker");
    await open(browser);
    offline = true;
    try {
      await open(browser, "#lesson=1");
      await browser.shows("scene 1 of");
    } finally {
      offline = false;
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
      assert.deepEqual(readFileSync(join(out, name)), readFileSync(join(folder, name)), name);
    }
    assert.throws(() => native("page", "--out", out), /exists already/);
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
};

let failures = 0;
for (const file of readdirSync(folder)) copyFileSync(join(folder, file), join(work, file));
for (const name of names.length ? names : ["chromium"]) {
  const browser = await Browser[name]();
  try {
    await browser.open(address, 960, 640);
    for (const [title, test] of Object.entries(tests)) {
      if (only && !title.includes(only)) continue;
      const started = Date.now();
      try {
        browser.problems.length = 0;
        await test(browser, process.env.LLAMA_TRACE_KERNEL ?? "wasm");
        // Firefox asks for an icon by itself, and the policy of the page refuses it.
        const problems = browser.problems.filter((problem) => !problem.includes("/favicon.ico"));
        assert.deepEqual(problems, [], "errors on the console");
        console.log(`${name}: ok (${Date.now() - started} ms): ${title}`);
      } catch (error) {
        failures++;
        console.log(`${name}: FAILED: ${title}\n${error.message}`);
      }
      if (pictures) writeFileSync(join(pictures, `${name}-${title.replaceAll(/[^a-z0-9]+/gi, "-")}.png`), await browser.picture());
    }
  } finally {
    await browser.close();
  }
}
server.close();
rmSync(work, { recursive: true, force: true });
process.exit(failures ? 1 : 0);
