// What all tests of the page share: a simple server, the program, and the steps of a user.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, resolve } from "node:path";

import { until } from "./browser.mjs";

export const [folder, program, ...browsers] = process.argv.slice(2);
export const kernel = process.env.LLAMA_TRACE_KERNEL ?? "wasm";
export const work = mkdtempSync(join(tmpdir(), "page-"));
export const here = import.meta.dirname;
export const fixtures = resolve(here, "../../fixtures");
for (const file of readdirSync(folder)) copyFileSync(join(folder, file), join(work, file));

// A folder below the root of the server: the page works under any path.
const BELOW = "/a/class/";
// A server without special headers, as simple ones are.
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".gz": "application/gzip" };
export const network = { works: true };
const server = createServer((request, response) => {
  if (!network.works) return response.destroy();
  const path = decodeURIComponent(new URL(request.url, "http://x").pathname);
  const name = path.startsWith(BELOW) ? path.slice(BELOW.length) || "index.html" : "/";
  if (!readdirSync(work).includes(name)) return response.writeHead(404).end();
  response.writeHead(200, { "Content-Type": TYPES[extname(name)] ?? "application/octet-stream" });
  response.end(readFileSync(join(work, name)));
});
await new Promise((done) => server.listen(0, "127.0.0.1", done));
export const address = `http://127.0.0.1:${server.address().port}${BELOW}`;

export function end() {
  server.close();
  rmSync(work, { recursive: true, force: true });
}

export const native = (...args) => execFileSync(program, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });

// The screen that the program draws for the same place, with the same kernel as in the page.
export function snapshot(at, view, [columns, rows], light) {
  const file = join(work, "snapshot.ansi");
  const args = ["snapshot", "--cpu-kernel", kernel, "--prompt", "Once upon a time", "--at", at, "--view", view, "--size", `${columns}x${rows}`, "--out", file, "--force"];
  native(...args, ...(light ? ["--light"] : []));
  return readFileSync(file, "utf8");
}

// Waits until the page's screen is equal to the program's, cell by cell, with colours.
export async function equal(browser, at, view, size) {
  const expected = snapshot(at, view, size, await browser.run("light.matches"));
  let page = "";
  await until(async () => (page = await browser.screen(true)) === expected, `${at} ${view}`, 10000).catch(() => {
    const [ours, theirs] = [page, expected].map((text) => text.split("\n"));
    const row = ours.findIndex((line, row) => line !== theirs[row]);
    assert.fail(`${at} as ${view} at ${size}, row ${row}:\n${ours[row]}\x1b[m\n${theirs[row]}\x1b[m`);
  });
}

// Drops files on the page, as a user does.
export async function drop(browser, ...files) {
  const parts = files.map(([name, bytes]) => `new File([Uint8Array.from(atob("${Buffer.from(bytes).toString("base64")}"), (c) => c.charCodeAt(0))], ${JSON.stringify(name)})`);
  await browser.run(`{ const data = new DataTransfer(); for (const file of [${parts}]) data.items.add(file); dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true })); } 0`);
}

export async function open(browser, link = "") {
  await browser.go("about:blank");
  await browser.go(`${address}${link}`);
  await browser.shows(/step \d+ of|is next|expected|fetching/, 60000);
}

// The line that a screen reader reads.
export const read = (browser) => browser.run(`$("cursor").textContent`);

// Leaves a picture of the page in the folder LLAMA_TRACE_PICTURES.
export async function picture(browser, name) {
  const pictures = process.env.LLAMA_TRACE_PICTURES;
  if (pictures) writeFileSync(join(pictures, `${browser.name}-${name.replaceAll(/[^a-z0-9]+/gi, "-")}.png`), await browser.picture());
}
