// The ways in which a user gives keys, clicks and text.
import assert from "node:assert/strict";

import { KEY, pause, until } from "./browser.mjs";
import { open, picture, read } from "./harness.mjs";

export default {
  async "keys of the browser keep their meaning"(browser) {
    await open(browser);
    await browser.run(`globalThis.passed = []; addEventListener("keydown", (event) => passed.push([event.key, event.ctrlKey, event.defaultPrevented])); 0`);
    for (const key of ["f", "a"]) await browser.control(key);
    const real = JSON.parse(await browser.run("JSON.stringify(passed)"));
    assert.deepEqual(real.filter(([key]) => key !== "Control"), [["f", true, false], ["a", true, false]]);
    await browser.keys(KEY.escape);
    // Chromium's own dialogs and tabs do not open in a test, so only the event is looked at.
    for (const name of ["f", "t", "r", "w", "+"]) {
      const prevented = await browser.run(`{ const event = new KeyboardEvent("keydown", { key: ${JSON.stringify(name)}, ctrlKey: true, cancelable: true, bubbles: true }); document.getElementById("keys").dispatchEvent(event); event.defaultPrevented }`);
      assert.equal(prevented, false, name);
    }
    const f5 = await browser.run(`{ const event = new KeyboardEvent("keydown", { key: "F5", cancelable: true, bubbles: true }); document.getElementById("keys").dispatchEvent(event); event.defaultPrevented }`);
    assert.equal(f5, false);
  },

  async "a tap is a click, and a finger that moves scrolls"(browser) {
    await open(browser);
    const screen = await browser.shows("rope_cos");
    const row = screen.split("\n").findIndex((line) => line.includes("rope_cos"));
    // The keyboard of a phone does not open.
    await browser.run("keys.blur(); 0");
    await browser.touch([3 * 8, row * 16 + 8]);
    await browser.shows(/rope_cos.* is next|step [2-9]\d* of/);
    assert.notEqual(await browser.run("document.activeElement.id"), "keys");
    await browser.follow("#at=p0/L0/ffn_hidden[t=0,f=0]&view=numbers");
    await until(async () => /ffn_hidden\[t=0,/.test(await read(browser)), "the place");
    await browser.shows("is next");
    const before = await read(browser);
    await browser.touch([600, 400], [600, 376], [600, 352], [600, 328]);
    await until(async () => (await read(browser)) !== before, "a scrolled cursor");
    await browser.touch([600, 328], [600, 360], [600, 392], [600, 424]);
    await until(async () => (await read(browser)) === before, "the cursor at its first place");
    await browser.touch([600, 400], [570, 400], [540, 400]);
    await until(async () => /f=[1-9]/.test(await read(browser)), "another column");
  },

  async "the wheel moves the cursor, and Ctrl with the wheel does not"(browser) {
    await open(browser, "#at=p0/L0/ffn_hidden[t=0,f=0]&view=numbers");
    await browser.shows("is next");
    const before = await read(browser);
    await browser.wheel(600, 400, 120);
    await until(async () => (await read(browser)) !== before, "a scrolled cursor");
    const zooms = await browser.run(`{ const event = new WheelEvent("wheel", { deltaY: 120, ctrlKey: true, cancelable: true, bubbles: true }); canvas.dispatchEvent(event); event.defaultPrevented }`);
    assert.equal(zooms, false);
  },

  async "text is pasted into a line"(browser) {
    await open(browser);
    await browser.shows("is next");
    await browser.keys("/");
    await browser.clipboard("prompt The big <b>dog</b>\nran");
    await browser.control("v");
    await browser.shows("prompt The big <b>dog</b>");
    await browser.keys(KEY.enter);
    await browser.shows(/r1/);
  },

  async "text comes from an input method and from a keyboard on the screen"(browser) {
    await open(browser);
    await browser.shows("is next");
    await browser.keys("/");
    await browser.run(`keys.value = "prompt A "; keys.dispatchEvent(new InputEvent("input")); 0`);
    await browser.run(`keys.dispatchEvent(new CompositionEvent("compositionstart")); keys.value = "fox"; keys.dispatchEvent(new InputEvent("input", { isComposing: true })); keys.dispatchEvent(new CompositionEvent("compositionend", { data: "fox" })); 0`);
    await browser.shows("prompt A fox");
    await browser.run(`keys.value = "\\n"; keys.dispatchEvent(new InputEvent("input")); 0`);
    await browser.shows(/r1/);
  },

  async "the buttons press keys and leave the focus"(browser) {
    await open(browser);
    await browser.shows("is next");
    for (const [key, wanted] of [["n", /step 2 of/], ["p", /step 1 of/], ["?", "Walking through the pass"], ["Escape", /step 1 of/]]) {
      await browser.run(`document.querySelector('[data-key="${key}"]').click(); 0`);
      await browser.shows(wanted);
    }
    assert.equal(await browser.run("document.activeElement.id"), "keys");
  },

  // Firefox has no way to look like a phone in a test.
  async "on a phone, buttons stand under the screen"(browser) {
    if (browser.name !== "chromium") return;
    const phone = (width, height) => browser.chromium("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 3, mobile: true });
    await browser.chromium("Emulation.setTouchEmulationEnabled", { enabled: true, maxTouchPoints: 5 });
    try {
      for (const [width, height] of [[390, 844], [844, 390]]) {
        await phone(width, height);
        await open(browser, "#at=p0/L1/softmax&view=heads");
        await browser.shows("is next");
        const [columns, button, wide, high] = JSON.parse(await browser.run(`JSON.stringify([size.columns, $("bar").querySelector('[data-key="n"]').getBoundingClientRect().height, document.documentElement.scrollWidth, document.documentElement.scrollHeight])`));
        assert.ok(columns >= 60 && button >= 32, `${columns} columns, ${button} pixels high`);
        assert.ok(wide <= width && high <= height, `${wide}x${high}`);
        await browser.run(`document.querySelector('[data-key="n"]').click(); 0`);
        await browser.shows("values_t");
        await picture(browser, `phone-${width}x${height}`);
      }
    } finally {
      await browser.chromium("Emulation.setTouchEmulationEnabled", { enabled: false });
      await browser.chromium("Emulation.clearDeviceMetricsOverride");
    }
  },
};
