// Links to places, and what a user saves.
import assert from "node:assert/strict";

import { KEY, until } from "./browser.mjs";
import { drop, equal, open, read } from "./harness.mjs";

export default {
  async "hostile links give one message, and the tracer works"(browser) {
    for (const link of ["#trace=../x", "#trace=https%3A//example.org/a", "#prompt=%3Cscript%3E&at=nowhere", "#edit=L0/xq%3D0", "#lesson=none", "#temperature=hot", "#precision=f64", "#trace=run.trace&seed=1", "#passes=65", "#lesson=16&scene=999", "#lesson=none.md", "#trace=none.trace", `#prompt=${"a".repeat(3000)}`, "#prompt=%", "#at=p0/L99/xq"]) {
      await open(browser, link);
      await browser.shows(/link|address|lesson|layer|L99|option|temperature|fetched/);
      await browser.keys("n");
      await browser.shows(/step 2 of/);
    }
    await open(browser, "#prompt=%3Cb%3Ebold%3C/b%3E");
    await browser.shows("<");
    assert.equal(await browser.run("document.querySelectorAll('b').length"), 0);
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

  async "a link carries sampling and precision, and is followed without a reload"(browser) {
    await open(browser, "#prompt=A%20fox&passes=4&temperature=0.9&top-k=20&seed=5&precision=bf16&at=p3/logits");
    await browser.shows(/temperature 0\.9/);
    const first = await browser.shows(/bf16[\s\S]*logits/);
    await browser.shows(/pass 3/);
    await browser.keys("y");
    const hash = await until(() => browser.run("location.hash"), "the link");
    assert.match(hash, /temperature=0\.9&top-k=20&seed=5/);
    assert.match(hash, /precision=bf16/);
    await browser.follow("#at=p0/L1/softmax[h=2]&view=numbers");
    await browser.shows("is next");
    await browser.keys(KEY.escape);
    await equal(browser, "p0/L1/softmax[h=2]", "numbers", [120, 40]);
    assert.doesNotMatch(await browser.screen(), /temperature 0\.9|bf16/, first);
  },

  async "marks are saved as a file, and the file opens"(browser) {
    await open(browser, "#at=p0/L1/softmax[h=1]");
    await browser.run(`globalThis.saved = []; globalThis.save = (name, bytes) => saved.push([name, new TextDecoder().decode(bytes)]); 0`);
    await browser.shows("is next");
    await browser.keys("m", "a");
    await browser.shows("m and Enter saves the marks");
    await browser.keys("m", KEY.enter);
    await browser.shows("saved as llama-trace.marks");
    const [name, text] = JSON.parse(await browser.run("JSON.stringify(saved[0])"));
    assert.match(text, /^a p0\/L1\/softmax\[h=1/);
    await open(browser);
    await browser.shows("is next");
    await drop(browser, [name, text]);
    await browser.shows("llama-trace.marks: a p0/L1/softmax");
    await browser.keys("'", "a");
    await until(async () => /^p0\/L1\/softmax\[h=1/.test(await read(browser)), "the marked place");
  },

  async "a download is a file"(browser) {
    await open(browser, "#at=p0/L1/softmax");
    await browser.run(`globalThis.urls = []; const made = URL.createObjectURL; URL.createObjectURL = (blob) => { urls.push(blob); return made.call(URL, blob); }; globalThis.clicks = []; addEventListener("click", ({ target }) => clicks.push([target.download, target.href.slice(0, 5)]), true); 0`);
    await browser.shows("is next");
    await browser.keys("S");
    await browser.shows("saved as p0_L1_softmax.svg");
    const text = await until(() => browser.run("urls[0]?.text() ?? ''"), "the file");
    assert.match(text, /^<svg/);
    // A link outside the document has no event that reaches the window, so its file is looked at alone.
    assert.equal(await browser.run("urls.length"), 1);
  },
};
