// The page around the tracer. The tracer runs in a worker; this script paints its cells, and hands it keys, the mouse,
// files and links.
"use strict";

const $ = (id) => document.getElementById(id);
const canvas = $("screen");
const paint = canvas.getContext("2d", { alpha: false });
const keys = $("keys");
const light = matchMedia("(prefers-color-scheme: light)");
// The smallest screen that the tracer draws on, and the width of a column at the usual size of text.
const SMALLEST = { columns: 60, rows: 16 };
const COLUMN = 8;
// A column is this part of the size of the font (DejaVu Sans Mono).
const ADVANCE = 1233 / 2048;
// The distance of the baseline from the top of a row, in rows.
const BASELINE = 15 / 20;
const STORED = "llama-trace/lesson/";

let worker = null;
// The sizes of a cell and of the screen that is painted.
let cell = { width: 8, height: 16, font: 13 };
let size = { columns: 0, rows: 0 };

// The screen that fits into the window. It is painted once its cells come, so that the old one stays until then.
function measured() {
  const ratio = devicePixelRatio || 1;
  const box = $("tracer").getBoundingClientRect();
  const width = Math.floor(box.width * ratio);
  const height = Math.floor(box.height * ratio);
  // On a narrow screen the letters are smaller, so that the smallest screen fits.
  const column = Math.max(3, Math.min(Math.round(COLUMN * ratio), Math.floor(width / SMALLEST.columns)));
  const columns = Math.max(SMALLEST.columns, Math.min(500, Math.floor(width / column)));
  const rows = Math.max(SMALLEST.rows, Math.min(200, Math.floor(height / (column * 2))));
  return { columns, rows, column, ratio };
}

function resize({ columns, rows, column, ratio }) {
  size = { columns, rows };
  cell = { width: column, height: column * 2, font: column / ADVANCE };
  canvas.width = columns * cell.width;
  canvas.height = rows * cell.height;
  canvas.style.width = `${canvas.width / ratio}px`;
  canvas.style.height = `${canvas.height / ratio}px`;
  paint.textBaseline = "alphabetic";
}

const text = new TextDecoder();
const colour = (bytes, at) => `rgb(${bytes[at]} ${bytes[at + 1]} ${bytes[at + 2]})`;

// Paints the cells of `src/page/cells.rs`.
function show(buffer) {
  const bytes = new Uint8Array(buffer);
  const numbers = new DataView(buffer);
  const { width, height, font } = cell;
  let at = 0;
  while (at < bytes.length) {
    const x = numbers.getUint16(at, true) * width;
    const y = numbers.getUint16(at + 2, true) * height;
    const wide = bytes[at + 4] * width;
    const style = bytes[at + 5];
    const ink = colour(bytes, at + 6);
    const letters = bytes[at + 12];
    const parts = bytes[at + 13];
    paint.fillStyle = colour(bytes, at + 9);
    paint.fillRect(x, y, wide, height);
    paint.fillStyle = ink;
    at += 14;
    if (letters > 0) {
      const symbol = text.decode(bytes.subarray(at, at + letters));
      const name = `${style & 2 ? "italic " : ""}${style & 1 ? "bold " : ""}${font}px Tracer, monospace`;
      if (paint.font !== name) paint.font = name;
      paint.save();
      paint.beginPath();
      paint.rect(x, y, wide, height);
      paint.clip();
      paint.fillText(symbol, x, y + Math.round(BASELINE * height));
      paint.restore();
      at += letters;
    }
    // Rectangles are in eighths of a tenth of a column. Their edges lie on pixels, so that neighbours join.
    for (let part = 0; part < parts; part++, at += 5) {
      const left = Math.round((bytes[at] / 80) * width);
      const top = Math.round((bytes[at + 1] / 160) * height);
      const right = Math.max(left + 1, Math.round(((bytes[at] + bytes[at + 2]) / 80) * width));
      const bottom = Math.max(top + 1, Math.round(((bytes[at + 1] + bytes[at + 3]) / 160) * height));
      paint.globalAlpha = bytes[at + 4] / 255;
      paint.fillRect(x + left, y + top, right - left, bottom - top);
      paint.globalAlpha = 1;
    }
    if (style & 4) paint.fillRect(x, y + Math.round(0.85 * height), wide, Math.max(1, Math.round(height / 20)));
  }
}

function note(message, failed) {
  $("why").textContent = message;
  for (const part of document.querySelectorAll(".local")) part.hidden = location.protocol !== "file:";
  $("again").hidden = !failed;
  $("note").hidden = false;
  $("tracer").hidden = $("bar").hidden = true;
}

function save(name, bytes) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// The storage may be off.
function stored() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(STORED));
    return names.map((name) => `${name.slice(STORED.length)}\n${localStorage.getItem(name)}`);
  } catch {
    return [];
  }
}

// Fetches a file beside the page for the link. Another link may be followed meanwhile.
async function fetched(name) {
  const link = location.hash;
  try {
    const answer = await fetch(`./${encodeURIComponent(name)}`, { redirect: "error" });
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const file = await answer.blob();
    if (location.hash === link) worker.postMessage({ kind: "files", files: [{ name, file }], link });
  } catch (error) {
    worker.postMessage({ kind: "fail", text: `${name} cannot be fetched from the folder of this page: ${error.message}` });
  }
}

const does = {
  async ready() {
    // Without its font, the tracer has the browser's.
    await document.fonts.load("16px Tracer").catch(() => {});
    $("note").hidden = true;
    $("tracer").hidden = $("bar").hidden = false;
    keys.focus();
    worker.postMessage({ kind: "begin", link: location.hash, stored: stored(), light: light.matches, screen: measured() });
  },
  cells({ cells, screen }) {
    if (screen) resize(screen);
    show(cells);
    // For tests: the number of drawings, and the times of the first and the last one.
    const { dataset } = document.documentElement;
    dataset.drawn = String(Number(dataset.drawn ?? 0) + 1);
    dataset.last = String(performance.now());
    dataset.first ??= dataset.last;
  },
  read({ text }) {
    $("cursor").textContent = text;
  },
  keep({ key, text }) {
    try {
      localStorage.setItem(STORED + key, text);
    } catch {
      // Without storage, a lesson begins again after a reload.
    }
  },
  copy({ text }) {
    history.replaceState(null, "", `#${text}`);
    navigator.clipboard?.writeText(location.href).catch(() => {
      worker.postMessage({ kind: "fail", text: "the browser does not let this page write to the clipboard; the link is in the address bar" });
    });
  },
  download({ name, bytes }) {
    save(name, bytes);
  },
  fetch({ name }) {
    fetched(name);
  },
  failed({ text }) {
    worker.terminate();
    note(`The tracer stopped because of an error:\n${text}`, true);
  },
  screen({ text }) {
    document.documentElement.dataset.screen = text;
  },
};

function start() {
  worker = new Worker("worker.js");
  worker.onmessage = ({ data }) => does[data.kind](data);
  worker.onerror = (event) => note(`The tracer cannot start: ${event.message || "its worker cannot be loaded"}`, true);
}

const held = (event) => (event.shiftKey ? 1 : 0) | (event.ctrlKey ? 2 : 0) | (event.altKey ? 4 : 0);
const press = (key, modifiers = 0) => worker.postMessage({ kind: "key", key, modifiers });

keys.addEventListener("keydown", (event) => {
  const { key } = event;
  if (event.isComposing || event.metaKey || key === "Unidentified" || key === "Process" || key === "Dead") return;
  // Ctrl and a key, and function keys, keep their meaning in the browser. AltGr types a character.
  const graph = event.getModifierState("AltGraph");
  const arrow = key.startsWith("Arrow");
  if (event.ctrlKey && !graph && !arrow) return;
  if (/^F\d+$/.test(key) || (event.altKey && !graph && !arrow)) return;
  event.preventDefault();
  press(key, graph ? 0 : held(event));
});
// Text that comes without keys: from an input method or a keyboard on the screen.
keys.addEventListener("input", (event) => {
  if (event.isComposing) return;
  const typed = keys.value;
  keys.value = "";
  for (const character of typed) press(character === "\n" ? "Enter" : character);
});
keys.addEventListener("compositionend", () => {
  const typed = keys.value;
  keys.value = "";
  for (const character of typed) press(character);
});
keys.addEventListener("paste", (event) => {
  event.preventDefault();
  worker.postMessage({ kind: "paste", text: event.clipboardData.getData("text/plain").slice(0, 1 << 20) });
});
addEventListener("focus", () => keys.focus());
// A tap does not open the keyboard on a screen; a button does.
document.addEventListener("pointerup", (event) => {
  if (event.pointerType !== "touch" && !event.target.closest("#bar, #note")) keys.focus({ preventScroll: true });
});

const place = (event) => {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * size.columns);
  const row = Math.floor(((event.clientY - box.top) / box.height) * size.rows);
  return [Math.max(0, Math.min(size.columns - 1, column)), Math.max(0, Math.min(size.rows - 1, row))];
};
const mouse = (use, event) => {
  const [column, row] = place(event);
  worker.postMessage({ kind: "mouse", use, column, row, modifiers: held(event) });
};
// A finger that moves scrolls; one that rests clicks when it is lifted.
let finger = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  event.preventDefault();
  // Two fingers zoom the page.
  if (!event.isPrimary) return void (finger = null);
  canvas.setPointerCapture(event.pointerId);
  if (event.pointerType === "touch") finger = { x: event.clientX, y: event.clientY, moved: false };
  else mouse(0, event);
});
canvas.addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") {
    if (event.buttons & 1) mouse(1, event);
    return;
  }
  if (!finger) return;
  const step = 24;
  const [x, y] = [event.clientX - finger.x, event.clientY - finger.y];
  if (Math.abs(y) >= step) {
    mouse(y < 0 ? 2 : 3, event);
    finger = { x: event.clientX, y: event.clientY, moved: true };
  } else if (Math.abs(x) >= step) {
    mouse(x < 0 ? 4 : 5, event);
    finger = { x: event.clientX, y: event.clientY, moved: true };
  }
});
canvas.addEventListener("pointerup", (event) => {
  if (finger && !finger.moved) mouse(0, event);
  finger = null;
});
canvas.addEventListener("pointercancel", () => (finger = null));
let turned = { x: 0, y: 0 };
canvas.addEventListener("wheel", (event) => {
  // Ctrl and the wheel zooms the page.
  if (event.ctrlKey) return;
  event.preventDefault();
  const unit = event.deltaMode === 0 ? 48 : event.deltaMode === 1 ? 3 : 1;
  turned.x += event.deltaX / unit;
  turned.y += event.deltaY / unit;
  while (Math.abs(turned.y) >= 1) {
    mouse(turned.y > 0 ? 2 : 3, event);
    turned.y -= Math.sign(turned.y);
  }
  while (Math.abs(turned.x) >= 1) {
    mouse(turned.x > 0 ? 4 : 5, event);
    turned.x -= Math.sign(turned.x);
  }
}, { passive: false });

// The worker reads the files. Nothing is uploaded. A file of a folder has the folder's name before its own.
function take(files) {
  if (files.length) worker.postMessage({ kind: "files", files, link: null });
}
const named = (file) => ({ name: file.name, file });

// The files of a folder, without its folders. Weights that are there in several formats are read once.
async function within(folder) {
  const reader = folder.createReader();
  const all = [];
  // Each call gives a part of the entries, the last one none.
  for (;;) {
    const part = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (part.length === 0) break;
    all.push(...part.filter((entry) => entry.isFile && !entry.name.startsWith(".")));
  }
  const twice = all.some(({ name }) => name.endsWith(".safetensors")) ? /\.(bin|pth?|gguf|onnx|h5|msgpack)$/i : /^$/;
  const wanted = all.filter(({ name }) => !twice.test(name));
  const read = ({ name }, file) => ({ name: `${folder.name}/${name}`, file });
  return Promise.all(wanted.map((entry) => new Promise((done, failed) => entry.file((file) => done(read(entry, file)), failed))));
}

// The files of a drop. Its entries can only be asked for before the first wait.
async function dropped(data) {
  const files = [...data.files].map(named);
  const folders = [...data.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => entry?.isDirectory);
  if (folders.length === 0) return files;
  const names = folders.map((folder) => folder.name);
  const inside = await Promise.all(folders.map(within));
  return [...files.filter((file) => !names.includes(file.name)), ...inside.flat()];
}
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("drop");
});
addEventListener("dragleave", () => document.body.classList.remove("drop"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("drop");
  dropped(event.dataTransfer).then(take).catch((error) => {
    worker.postMessage({ kind: "fail", text: `the folder cannot be read: ${error.message}` });
  });
});
$("open").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", (event) => {
  take([...event.target.files].map(named));
  event.target.value = "";
  keys.focus();
});
$("files").addEventListener("cancel", () => keys.focus());
// A button takes no keys from the tracer.
$("bar").addEventListener("mousedown", (event) => event.preventDefault());
for (const button of document.querySelectorAll("[data-key]")) {
  button.addEventListener("click", () => press(button.dataset.key));
}
$("type").addEventListener("click", () => keys.focus());
$("again").addEventListener("click", () => {
  note("The tracer is loading.", false);
  start();
});

let waits = 0;
function resized() {
  clearTimeout(waits);
  waits = setTimeout(() => {
    if (!$("tracer").hidden) worker.postMessage({ kind: "resize", screen: measured() });
  }, 50);
}
new ResizeObserver(resized).observe($("tracer"));
// The size in pixels also changes on a zoom, and on another screen.
function watch() {
  const resolution = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
  resolution.addEventListener("change", () => (resized(), watch()), { once: true });
}
watch();
light.addEventListener("change", () => worker.postMessage({ kind: "paper", light: light.matches }));
addEventListener("hashchange", () => worker.postMessage({ kind: "begin", link: location.hash, stored: stored(), light: light.matches, screen: measured() }));

if (location.protocol === "file:") {
  note("This page was opened from a file.", false);
} else {
  for (const part of document.querySelectorAll(".local")) part.hidden = true;
  start();
  // The page works offline afterwards. It also works without a service worker.
  navigator.serviceWorker?.register("service.js").catch(() => {});
}
