// Steps through passes and lessons.
import assert from "node:assert/strict";

import { KEY, pause } from "./browser.mjs";
import { equal, open } from "./harness.mjs";

export default {
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

  async "the values are those of the program"(browser) {
    await open(browser, "#at=p0/L1/softmax[h=2]&view=numbers");
    await browser.keys(KEY.escape);
    await browser.shows("softmax");
    await equal(browser, "p0/L1/softmax[h=2]", "numbers", [120, 40]);
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
};
