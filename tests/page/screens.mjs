// What a user sees and hears.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { join } from "node:path";

import { KEY, until } from "./browser.mjs";
import { equal, open, picture, read, work } from "./harness.mjs";

// Every view, with a step that it fits.
const VIEWS = [
  ["p0/tokens", "list"], ["p0/logits", "largest"], ["p0/nucleus", "largest"], ["p0/L1/xq", "heatmap"],
  ["p0/L1/masked_scores[h=2]", "numbers"], ["p0/L1/softmax", "heads"], ["p0/L0/ffn_hidden", "overview"],
  ["p0/L1/scores", "histogram"], ["p0/probs", "sampler"], ["p0/L1/xq_rope", "flow"], ["p0/L1/xq_rope", "pass"],
  ["p0/L1/attn_residual", "residual"], ["p0/L2/ffn_hidden", "neurons"], ["p0/tokens", "tokens"],
  ["p0/L1/softmax", "layers"], ["p0/L1/softmax", "bars"], ["p0/L1/cache_k", "cache"], ["p0/L1/xq_rope", "rope"],
  ["p0/rope_cos", "rope"], ["p0/L2/ffn_residual", "lens"], ["p0/logits", "attribution"],
];
const SIZES = [[960, 664, 120, 40], [640, 408, 80, 24]];

export default {
  async "every view is equal to the program's, at two sizes"(browser) {
    for (const [width, height, ...size] of SIZES) {
      await browser.resize(width, height);
      await open(browser);
      for (const [at, view] of VIEWS) {
        await browser.follow(`#at=${at}&view=${view}`);
        // Before the first pass is done, Esc has another meaning.
        await browser.shows("is next");
        await browser.keys(KEY.escape);
        await equal(browser, at, view, size);
      }
    }
    await browser.resize(960, 664);
  },

  async "the colour scheme changes with that of the system"(browser) {
    await open(browser, "#at=p0/L1/softmax&view=heads");
    await browser.shows("is next");
    await browser.keys(KEY.escape);
    const ground = () => browser.run("getComputedStyle(document.body).backgroundColor + [...paint.getImageData(0, 0, 1, 1).data]");
    // One after the other, so that the page starts from another scheme than the first.
    await browser.scheme("dark");
    let last = await ground();
    const seen = [];
    for (const scheme of ["light", "dark", "light"]) {
      await browser.scheme(scheme);
      await until(() => browser.run(`light.matches === ${scheme === "light"}`), scheme);
      await until(async () => (await ground()) !== last, `the ${scheme} ground`);
      last = await ground();
      await equal(browser, "p0/L1/softmax", "heads", [120, 40]);
      seen.push(last);
    }
    assert.equal(seen[0], seen[2]);
    await browser.scheme("dark");
  },

  async "a screen reader reads the address and the value under the cursor"(browser) {
    await open(browser, "#at=p0/L1/softmax[h=0,t=0,k=0]&view=numbers");
    await browser.shows("is next");
    await until(async () => /^p0\/L1\/softmax\[h=0,t=0,k=0\] *= *1/.test(await read(browser)), "the first value");
    await browser.keys(KEY.down, KEY.right);
    await until(async () => /softmax\[h=0,t=1,k=1\] *= *0\./.test(await read(browser)), "the next value");
    await browser.keys("n");
    await until(async () => !/softmax/.test(await read(browser)), "the next step");
    const line = await read(browser);
    assert.equal(await browser.run(`$("cursor").getAttribute("aria-live")`), "polite");
    assert.equal(await browser.run(`$("keys").getAttribute("aria-describedby")`), "cursor");
    if (browser.name === "chromium") {
      const { nodes } = await browser.chromium("Accessibility.getFullAXTree");
      const field = nodes.find(({ role, ignored }) => !ignored && role?.value === "textbox");
      assert.equal(field.description.value, line);
      assert.match(field.name.value, /^Keys of the tracer/);
      const live = nodes.find(({ properties }) => properties?.some(({ name, value }) => name === "live" && value.value === "polite"));
      assert.ok(live, "a live region");
    }
  },

  async "the screen follows the window and the zoom"(browser) {
    await open(browser);
    await browser.shows("is next");
    const facts = async () => JSON.parse(await browser.run("JSON.stringify([size.columns, size.rows, canvas.width, canvas.height, document.documentElement.scrollWidth, document.documentElement.scrollHeight])"));
    // Width and height of the window, its pixels for each pixel of the page, and the columns and rows.
    const cases = [[1200, 800, 1, 150, 48], [960, 640, 2, 120, 38], [640, 427, 1.5, 80, 25], [320, 240, 1, 64, 21], [240, 160, 2, 60, 17]];
    for (const [width, height, ratio, columns, rows] of cases) {
      await browser.resize(width, height, ratio);
      const what = `${width}x${height} at ${ratio}`;
      await until(async () => (await facts())[0] === columns && (await facts())[1] === rows, what, 5000).catch(async (error) => assert.fail(`${error.message}: ${await facts()}`));
      const drawn = async () => {
        const lines = (await browser.screen()).trimEnd().split("\n");
        return lines.length === rows && Math.max(...lines.map((line) => [...line].length)) === columns;
      };
      await until(drawn, `${what} as drawn`);
      const [, , wide, high, scrollWidth, scrollHeight] = await facts();
      assert.ok(wide <= width * ratio && high <= height * ratio, `${what}: ${wide}x${high} pixels`);
      assert.ok(scrollWidth <= width && scrollHeight <= height, `${what}: ${scrollWidth}x${scrollHeight}`);
      await picture(browser, what);
    }
    await browser.resize(960, 664);
    await until(async () => (await facts())[0] === 120, "the first size");
  },

  async "a page that is opened as a file says how to serve it"(browser) {
    await browser.go(pathToFileURL(join(work, "index.html")).href);
    const seen = await until(() => browser.run("document.body.innerText"), "a text");
    assert.match(seen, /From a file, the browser does not let/);
    assert.match(seen, /llama-trace page --serve/);
    assert.match(seen, /python3 -m http\.server --bind 127\.0\.0\.1/);
    assert.doesNotMatch(seen, /keyboard|open…/);
  },
};
