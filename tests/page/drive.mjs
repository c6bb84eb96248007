// Tests the web page in real browsers, with real keys and clicks.
//
//   node --experimental-websocket tests/page/drive.mjs FOLDER PROGRAM [chromium] [firefox]
//
// FOLDER is a page that `.ci/page` built; PROGRAM is a native build of llama-trace, whose screens must be equal to those
// of the page. With LLAMA_TRACE_PICTURES=DIR, each test leaves a picture of its last screen there. LLAMA_TRACE_ONLY runs
// the tests whose titles match this expression.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";

import { Browser } from "./browser.mjs";
import { address, browsers, end, picture } from "./harness.mjs";
import files from "./files.mjs";
import inputs from "./inputs.mjs";
import links from "./links.mjs";
import program from "./program.mjs";
import screens from "./screens.mjs";
import walk from "./walk.mjs";

const groups = { walk, inputs, screens, links, files, program };
const only = new RegExp(process.env.LLAMA_TRACE_ONLY ?? "");
const chosen = (group) => Object.entries(group).filter(([title]) => only.test(title));
// A test that takes longer, in milliseconds, has failed.
const LONGEST = 300000;

async function inTime(running) {
  let timer;
  const late = new Promise((_, failed) => (timer = setTimeout(failed, LONGEST, new Error(`it did not end within ${LONGEST} ms`))));
  await Promise.race([running, late]).finally(() => clearTimeout(timer));
}

let failures = 0;

// Runs a test, and returns whether it ended well.
async function passes(browser, title, test) {
  const started = Date.now();
  try {
    browser.problems.length = 0;
    await browser.resize(960, 664);
    await inTime(test(browser));
    // Firefox asks for an icon by itself, and the policy of the page refuses it.
    const problems = browser.problems.filter((problem) => !problem.includes("/favicon.ico"));
    assert.deepEqual(problems, [], "errors on the console");
    await inTime(picture(browser, title));
    console.log(`${browser.name}: ok (${Date.now() - started} ms): ${title}`);
    return true;
  } catch (error) {
    failures++;
    console.log(`${browser.name}: FAILED: ${title}\n${error.message}`);
    return false;
  }
}

// Each group of tests has a browser of its own, and so have the tests after one that failed.
async function runs(name, group) {
  let browser = null;
  for (const [title, test] of chosen(group)) {
    if (!browser) {
      browser = await Browser[name]();
      await browser.open(address, 960, 664);
    }
    if (!(await passes(browser, title, test))) {
      await browser.close();
      browser = null;
    }
  }
  await browser?.close();
}

// Each group also has a process of its own: in one that has run for minutes, Firefox's connections broke.
const own = process.env.LLAMA_TRACE_GROUP;
for (const name of browsers.length ? browsers : ["chromium"]) {
  for (const [group, tests] of Object.entries(groups)) {
    if (own === group) {
      await runs(name, tests);
    } else if (!own && chosen(tests).length) {
      const env = { ...process.env, LLAMA_TRACE_GROUP: group };
      const { status } = spawnSync(process.execPath, [...process.execArgv, ...process.argv.slice(1, 4), name], { stdio: "inherit", env });
      failures += status === 0 ? 0 : 1;
    }
  }
}
end();
process.exit(failures ? 1 : 0);
