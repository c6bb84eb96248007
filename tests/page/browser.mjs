// A browser under test, driven with WebDriver BiDi: Chromium through chromedriver, Firefox directly.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

// A browser that does not answer a command within this time, in milliseconds, has stopped.
const ANSWER = 120000;

const pause = (time) => new Promise((done) => setTimeout(done, time));

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

// Repeats `attempt` until it succeeds.
async function until(attempt, what, time = 30000) {
  const started = Date.now();
  for (;;) {
    try {
      const found = await attempt();
      if (found) return found;
    } catch (error) {
      if (Date.now() - started > time) throw error;
    }
    if (Date.now() - started > time) throw new Error(`${what} did not come within ${time} ms`);
    await pause(20);
  }
}

// The command under a connection that can be written to. Node 20 has no WebSocket of its own without a flag.
export class Browser {
  static async chromium(...more) {
    const port = await freePort();
    const folder = mkdtempSync(join(tmpdir(), "page-chromium-"));
    const driver = spawn("chromedriver", [`--port=${port}`, "--log-level=SEVERE"], { stdio: "inherit" });
    const args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", `--user-data-dir=${folder}`, "--force-device-scale-factor=1", ...more];
    const capabilities = { alwaysMatch: { webSocketUrl: true, "goog:chromeOptions": { args } } };
    const answer = await until(async () => {
      const answer = await fetch(`http://127.0.0.1:${port}/session`, { method: "POST", body: JSON.stringify({ capabilities }) });
      return answer.json();
    }, "chromedriver");
    if (!answer.value.capabilities) throw new Error(JSON.stringify(answer.value));
    const session = `http://127.0.0.1:${port}/session/${answer.value.sessionId}`;
    const close = async () => {
      await fetch(session, { method: "DELETE" }).catch(() => {});
      driver.kill();
      rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
    };
    return new Browser("chromium", close).connect(answer.value.capabilities.webSocketUrl);
  }

  static async firefox() {
    const port = await freePort();
    const folder = mkdtempSync(join(tmpdir(), "page-firefox-"));
    // Without this, the browser waits for a busy disk after each change of its own databases.
    writeFileSync(join(folder, "user.js"), 'user_pref("toolkit.storage.synchronous", 0);\n');
    const args = ["--headless", "--no-remote", "--profile", folder, "--remote-debugging-port", String(port), "--remote-allow-system-access", "--width=960", "--height=720"];
    const program = spawn("firefox-esr", args, { stdio: "ignore", env: { ...process.env, HOME: folder, MOZ_DISABLE_CONTENT_SANDBOX: "1" } });
    const close = async () => {
      const ended = new Promise((done) => program.once("exit", done));
      program.kill();
      await ended;
      rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
    };
    const browser = new Browser("firefox", close);
    await until(() => browser.connect(`ws://127.0.0.1:${port}/session`), "firefox");
    await browser.send("session.new", { capabilities: {} });
    return browser;
  }

  constructor(name, close) {
    Object.assign(this, { name, end: close, next: 1, waiting: new Map(), problems: [] });
  }

  async connect(url) {
    this.socket = new WebSocket(url);
    await new Promise((done, failed) => {
      this.socket.onopen = done;
      this.socket.onerror = () => failed(new Error(`no connection to ${url}`));
    });
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    return this;
  }

  receive(message) {
    if (message.type === "event") {
      const { level, text } = message.params;
      if (message.method === "log.entryAdded" && level === "error") this.problems.push(text);
      return;
    }
    const waits = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (!waits) return;
    if (message.type === "error") waits.failed(new Error(`${message.error}: ${message.message}`));
    else waits.done(message.result);
  }

  send(method, params) {
    const id = this.next++;
    const answer = new Promise((done, failed) => this.waiting.set(id, { done, failed }));
    this.socket.send(JSON.stringify({ id, method, params }));
    let timer;
    const late = new Promise((_, failed) => (timer = setTimeout(failed, ANSWER, new Error(`${this.name} did not answer ${method} within ${ANSWER} ms: ${JSON.stringify(params).slice(0, 300)}`))));
    return Promise.race([answer, late]).finally(() => clearTimeout(timer));
  }

  // Opens a page of this size in pixels. Violations of its policy become problems.
  async open(url, width, height) {
    await this.send("session.subscribe", { events: ["log.entryAdded"] });
    const { contexts } = await this.send("browsingContext.getTree", {});
    this.context = contexts[0].context;
    const watch = `() => addEventListener("securitypolicyviolation", (event) => console.error("policy: " + event.violatedDirective + " " + event.blockedURI))`;
    await this.send("script.addPreloadScript", { functionDeclaration: watch });
    await this.resize(width, height);
    await this.go(url);
  }

  // `ratio` is the number of the screen's pixels for each pixel of the page, which a zoom changes.
  async resize(width, height, ratio = 1) {
    await this.send("browsingContext.setViewport", { context: this.context, viewport: { width, height }, devicePixelRatio: ratio });
  }

  // A command of Chromium's own protocol.
  async chromium(method, params = {}) {
    const { session } = await this.send("goog:cdp.getSession", { context: this.context });
    return (await this.send("goog:cdp.sendCommand", { method, params, session })).result;
  }

  // The colour scheme of the system.
  async scheme(name) {
    if (this.name === "chromium") {
      return this.chromium("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: name }] });
    }
    const { contexts } = await this.send("browsingContext.getTree", { "moz:scope": "chrome" });
    const expression = `Services.prefs.setIntPref("layout.css.prefers-color-scheme.content-override", ${name === "dark" ? 0 : 1})`;
    return this.send("script.evaluate", { expression, awaitPromise: false, target: { context: contexts[0].context } });
  }

  go(url) {
    return this.send("browsingContext.navigate", { context: this.context, url, wait: "complete" });
  }

  async evaluate(script, options = {}) {
    const answer = await this.send("script.evaluate", { expression: script, awaitPromise: true, target: { context: this.context }, ...options });
    if (answer.type === "exception") throw new Error(`${answer.exceptionDetails.text} in ${script.slice(0, 200)}`);
    return answer.result;
  }

  // The value of a script in the page.
  async run(script, options) {
    return (await this.evaluate(script, options)).value;
  }

  // Follows a link of the page without loading it again.
  async follow(link) {
    await this.run(`new Promise((done) => { addEventListener("hashchange", () => setTimeout(done), { once: true }); location.hash = ${JSON.stringify(link)}; })`);
  }

  // Chooses files of this machine in a field of the page.
  async choose(selector, files) {
    const { sharedId } = await this.evaluate(`document.querySelector(${JSON.stringify(selector)})`);
    await this.send("input.setFiles", { context: this.context, element: { sharedId }, files });
  }

  // Puts a text on the clipboard.
  async clipboard(text) {
    await this.run(`{ const field = document.createElement("textarea"); document.body.append(field); field.value = ${JSON.stringify(text)}; field.select(); const done = document.execCommand("copy"); field.remove(); keys.focus(); if (!done) throw new Error("nothing is copied"); } 0`, { userActivation: true });
  }

  // The screen of the tracer as text, with or without the codes of a terminal's colours.
  async screen(styled = false) {
    await this.run(`delete document.documentElement.dataset.screen; worker.postMessage({ kind: "screen", styled: ${styled} }); 0`);
    // A tracer that has not begun does not answer.
    return until(() => this.run("document.documentElement.dataset.screen ?? ''"), "the screen", 1000).catch(() => "");
  }

  // Waits until the screen contains a text.
  async shows(wanted, time) {
    let last = "";
    try {
      return await until(async () => {
        last = await this.screen();
        const found = wanted instanceof RegExp ? wanted.test(last) : last.includes(wanted);
        return found && last;
      }, `"${wanted}"`, time);
    } catch (error) {
      throw new Error(`${error.message}; the screen is\n${last}`);
    }
  }

  // Presses keys: single characters and WebDriver's codes.
  async keys(...all) {
    const actions = all.flatMap((value) => [{ type: "keyDown", value }, { type: "keyUp", value }]);
    await this.send("input.performActions", { context: this.context, actions: [{ type: "key", id: "keyboard", actions }] });
  }

  // A key with Ctrl held.
  async control(value) {
    const actions = [{ type: "keyDown", value: "\uE009" }, { type: "keyDown", value }, { type: "keyUp", value }, { type: "keyUp", value: "\uE009" }];
    await this.send("input.performActions", { context: this.context, actions: [{ type: "key", id: "keyboard", actions }] });
  }

  async click(x, y) {
    const actions = [{ type: "pointerMove", x, y }, { type: "pointerDown", button: 0 }, { type: "pointerUp", button: 0 }];
    await this.send("input.performActions", { context: this.context, actions: [{ type: "pointer", id: "mouse", actions }] });
  }

  // A finger that touches the screen at the first place and moves through the others.
  async touch(...places) {
    const [[x, y], ...rest] = places;
    const moves = rest.map(([x, y]) => ({ type: "pointerMove", x, y, duration: 50 }));
    const actions = [{ type: "pointerMove", x, y }, { type: "pointerDown", button: 0 }, ...moves, { type: "pointerUp", button: 0 }];
    await this.send("input.performActions", { context: this.context, actions: [{ type: "pointer", id: "finger", parameters: { pointerType: "touch" }, actions }] });
  }

  async wheel(x, y, deltaY) {
    const actions = [{ type: "scroll", x, y, deltaX: 0, deltaY }];
    await this.send("input.performActions", { context: this.context, actions: [{ type: "wheel", id: "wheel", actions }] });
  }

  // A picture of the page as PNG.
  async picture() {
    const { data } = await this.send("browsingContext.captureScreenshot", { context: this.context });
    return Buffer.from(data, "base64");
  }

  async close() {
    this.socket?.close();
    await this.end();
  }
}

export const KEY = { enter: "\uE007", escape: "\uE00C", backspace: "\uE003", down: "\uE015", up: "\uE013", left: "\uE012", right: "\uE014", tab: "\uE004" };
export { pause, until };
