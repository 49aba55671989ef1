// The stream of events, once for all tabs of a browser. It runs in a shared worker, or in the page where there are none.
// A tab says which address it shows and in which version. The stream subscribes to the addresses of all tabs.
"use strict";
(() => {
  // Milliseconds: a new stream without an event, an open one without an event, a tab without a sign of life.
  const FIRST = 5000;
  const QUIET = 40000;
  const FORGET = 200000;
  const MOST = 20;
  const NAMES = ["fragment", "gone", "order", "title", "at", "resync", "end", "beat"];

  const tabs = new Map();
  // The version that the stream has brought each of its addresses to; absent while it is not known.
  const versions = new Map();
  let base = "";
  let source = null;
  let ofs = [];
  let opened = 0;
  let heard = 0;
  let failures = 0;
  let retryAt = 0;
  let isLive = false;
  let isHalted = false;
  let planned = 0;

  const wanted = () => [...new Set([...tabs.values()].map((tab) => tab.of))].slice(0, MOST);
  const modeOf = (tab) => (isLive && ofs.includes(tab.of) ? "live" : "poll");
  const tellAll = () => {
    // A stream that has just been opened is neither live nor broken.
    if (!isLive && source) return;
    for (const [port, tab] of tabs) port.postMessage({ mode: modeOf(tab) });
  };

  const close = () => {
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    ofs = wanted();
    if (!ofs.length || isHalted) return;
    const query = new URLSearchParams();
    versions.clear();
    for (const of of ofs) {
      const shown = new Set([...tabs.values()].filter((tab) => tab.of === of).map((tab) => tab.at));
      const at = shown.size === 1 ? [...shown][0] : "";
      if (at) versions.set(of, at);
      query.append("of", of);
      query.append("at", at ?? "");
    }
    opened = Date.now();
    heard = 0;
    if (!self.EventSource) {
      fail();
      return;
    }
    const mine = new EventSource(`${base}?${query}`);
    source = mine;
    for (const name of NAMES) {
      mine.addEventListener(name, (event) => { if (source === mine) hear(name, JSON.parse(event.data)); });
    }
    mine.onerror = () => { if (source === mine) fail(); };
  };
  const fail = () => {
    close();
    isLive = false;
    // A server that comes back is found soon, and not by all browsers at once.
    retryAt = Date.now() + Math.min(15000, 500 * 2 ** failures) * (1 + Math.random() / 2);
    failures += 1;
    tellAll();
  };
  const hear = (name, data) => {
    const isFirst = !heard;
    heard = Date.now();
    failures = 0;
    isLive = true;
    if (isFirst) tellAll();
    if (name === "beat") return;
    const of = Number.isInteger(data.of) ? ofs[data.of] : null;
    if (name === "at") versions.set(of, data.at);
    if (name === "resync") versions.delete(of);
    if (name === "end" && of === null) {
      isHalted = true;
      isLive = false;
      close();
    }
    for (const [port, tab] of tabs) {
      if (of !== null && tab.of !== of) continue;
      if (name === "at") tab.at = data.at;
      port.postMessage({ name, data });
    }
  };

  const plan = (milliseconds) => {
    clearTimeout(planned);
    planned = setTimeout(open, milliseconds);
  };
  const take = (port, { is, stream, of, at }) => {
    if (is === "bye") {
      tabs.delete(port);
      if (tabs.size) return;
      close();
      isLive = false;
      return;
    }
    base = stream;
    const isNew = !tabs.has(port);
    tabs.set(port, { of, at, seen: Date.now() });
    if (is === "open") isHalted = false;
    if (isHalted) return;
    if (!source && (isNew || is === "open")) plan(0);
    else if (!ofs.includes(of) && wanted().includes(of)) plan(200);
    // The page was rendered before this tab began to listen. A page that was just loaded is new enough.
    const isBehind = versions.has(of) && versions.get(of) !== at;
    if (is === "open" && isLive && isBehind) port.postMessage({ mode: "load" });
    // An address that the next stream will have is neither live nor polled yet.
    const isPlanned = !ofs.includes(of) && wanted().includes(of);
    if (isLive && !isPlanned || !source && failures) port.postMessage({ mode: modeOf(tabs.get(port)) });
  };
  setInterval(() => {
    const now = Date.now();
    for (const [port, tab] of tabs) if (now - tab.seen > FORGET) tabs.delete(port);
    if (source && now - (heard || opened) > (heard ? QUIET : FIRST)) fail();
    else if (!source && tabs.size && now >= retryAt) open();
    else if (source && ofs.some((of) => ![...tabs.values()].some((tab) => tab.of === of)) && now - opened > 30000) open();
  }, 1000);

  const attach = (port) => {
    port.onmessage = ({ data }) => take(port, data);
    port.start?.();
  };
  self.onconnect = ({ ports: [port] }) => attach(port);
  self.oarlockAttach = attach;
})();
