// The service worker: keeps the page's files, so that it works offline. With a network, the newest files are taken.
"use strict";

const CACHE = "llama-trace";
const FILES = ["./", "page.css", "page.js", "worker.js", "font.woff2", "llama-trace.wasm.gz"];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => skipWaiting()));
});
addEventListener("activate", (event) => event.waitUntil(clients.claim()));
addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || new URL(request.url).origin !== location.origin) return;
  event.respondWith(
    fetch(request)
      .then(async (answer) => {
        if (answer.ok && answer.type === "basic") {
          const cache = await caches.open(CACHE);
          event.waitUntil(cache.put(request, answer.clone()));
        }
        return answer;
      })
      .catch(async () => (await caches.match(request, { ignoreSearch: true })) ?? Response.error()),
  );
});
