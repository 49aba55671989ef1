// The script of each page: ages, copy buttons, the grid, and live changes. Without it, the page still shows everything.
"use strict";
(() => {
  const own = document.currentScript.dataset;
  const root = document.documentElement;
  root.classList.add("js");

  // Ages. No fragment has an age, so that time alone changes no fragment.
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const span = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    const at = UNITS.findIndex(([size]) => whole >= size);
    if (at < 0) return "0s";
    const [size, unit] = UNITS[at];
    const big = Math.floor(whole / size);
    const next = UNITS[at + 1];
    const rest = next ? Math.floor((whole % size) / next[0]) : 0;
    return big < 10 && rest > 0 ? `${big}${unit}${rest}${next[1]}` : `${big}${unit}`;
  };
  const ages = () => {
    if (document.hidden) return;
    const now = Date.now();
    for (const time of document.querySelectorAll("time[data-is]")) {
      const seconds = (now - Date.parse(time.dateTime)) / 1000;
      const is = time.dataset.is;
      const text = is === "until" ? (seconds < 0 ? `in ${span(-seconds)}` : "now") : span(seconds) + (is === "ago" ? " ago" : "");
      if (time.textContent !== text) time.textContent = text;
    }
  };
  ages();
  setInterval(ages, 1000);

  // Copy buttons. Without a clipboard, the command is selected.
  const copy = async (button) => {
    const code = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  // The grid. A cell is a link only if it needs attention; a click finds the others by their place.
  const cellAt = (event) => {
    const svg = event.target.closest?.("svg[data-first]");
    if (!svg) return null;
    const box = svg.getBoundingClientRect();
    const columns = Number(svg.dataset.columns);
    const size = box.width / columns;
    const at = Math.floor((event.clientY - box.top) / size) * columns + Math.floor((event.clientX - box.left) / size);
    return at >= 0 && at < Number(svg.dataset.count) ? { svg, index: Number(svg.dataset.first) + at } : null;
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-copy]");
    if (button) copy(button);
    const cell = event.target.closest?.("a") ? null : cellAt(event);
    const base = location.pathname;
    if (cell && /^\/ui\/op[js]/.test(base)) location.href = `${base}?target=${cell.index}`;
    else if (cell) location.href = `${base}?from=${cell.index}#unit-${cell.index}`;
  });
  document.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (cell) cell.svg.parentElement.title = `${cell.index + 1}`;
  }, { passive: true });

  // Logs. Each opening reads the log anew.
  const showLog = async (details) => {
    const box = details.querySelector(".answer");
    box.textContent = "Reading the log";
    try {
      const answer = await fetch(details.dataset.log, { cache: "no-store", signal: AbortSignal.timeout(30000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (page.getElementById("login")) location.reload();
      const found = page.querySelector(".answer");
      if (found) {
        box.replaceWith(found);
        // The reason is at the end of most logs.
        found.querySelector("pre.log")?.scrollTo(0, 1e9);
      } else box.textContent = page.getElementById("main").textContent;
    } catch {
      box.textContent = "The server does not answer. Close and open the log to try again.";
    }
  };
  document.addEventListener("toggle", ({ target }) => { if (target.open && target.dataset.log) showLog(target); }, true);

  // Live changes.
  if (!own.of) return;
  const live = document.getElementById("live");
  const main = () => document.getElementById("main");
  const clock = () => `${new Date().toISOString().slice(11, 19)} UTC`;
  const OPTIONS = {
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details"),
      // An open log stays, unless another Job has failed meanwhile.
      beforeNodeMorphed: (node, now) => !(node.open && node.dataset?.log && node.dataset.log === now.dataset?.log),
    },
  };
  let state = "";
  const say = (now, text) => {
    if (state === now) return;
    state = now;
    live.dataset.state = now;
    live.textContent = text;
  };

  // A part of a drawing is an element of SVG only inside one. `near` is the old element, or the parent of a new one.
  const element = (html, near) => {
    const isDrawing = near.namespaceURI.endsWith("/svg") && near.localName !== "svg";
    const template = document.createElement("template");
    template.innerHTML = isDrawing ? `<svg>${html}</svg>` : html;
    const first = template.content.firstElementChild;
    return isDrawing ? first.firstElementChild : first;
  };
  const APPLY = {
    fragment: ({ id, html, in: list }) => {
      const old = document.getElementById(id);
      const parent = document.getElementById(list);
      if (old) Idiomorph.morph(old, element(html, old), OPTIONS);
      else parent?.append(element(html, parent));
    },
    gone: ({ id }) => document.getElementById(id)?.remove(),
    order: ({ in: list, ids }) => {
      const parent = document.getElementById(list);
      let at = parent?.firstElementChild;
      for (const id of parent ? ids : []) {
        const child = document.getElementById(id);
        if (child && child === at) at = at.nextElementSibling;
        else if (child) parent.insertBefore(child, at);
      }
    },
    title: ({ text }) => { document.title = `${text} - Oarlock`; },
    at: ({ at }) => { main().dataset.at = at; },
    resync: () => load(),
    end: ({ text }) => { ended = text || "ended"; load(); },
  };

  // Events that come while the page loads are newer than the page or equal, so they wait for it.
  let waiting = [];
  let loading = null;
  let ended = "";
  const apply = (name, data) => {
    if (loading && name !== "resync" && name !== "end") waiting.push([name, data]);
    else APPLY[name]?.(data);
    if (!loading) ages();
  };
  let again = false;
  const load = () => {
    again = Boolean(loading);
    loading ??= fetchPage().finally(() => {
      loading = null;
      for (const [name, data] of waiting.splice(0)) APPLY[name]?.(data);
      ages();
      if (again) load();
    });
    return loading;
  };
  let lostSince = "";
  const fetchPage = async () => {
    try {
      const answer = await fetch(own.of, { cache: "no-store", headers: { Accept: "text/html" }, signal: AbortSignal.timeout(20000) });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const now = page.getElementById("main");
      if (answer.status >= 500 || !now) throw new Error("no page");
      Idiomorph.morph(main(), now, OPTIONS);
      document.title = page.title;
      lostSince = "";
      if (ended || answer.status === 401) stop(ended || "you are logged out");
      else if (polling) say("poll", `Polling since ${pollSince}`);
      send("loaded");
    } catch {
      lostSince ||= clock();
      say("lost", `No server since ${lostSince}`);
      if (ended) stop(ended);
    }
  };

  let polling = 0;
  let pollSince = "";
  const poll = () => {
    if (polling || ended) return;
    pollSince = clock();
    if (!lostSince) say("poll", `Polling since ${pollSince}`);
    const next = () => {
      polling = setTimeout(async () => { await load(); if (polling) next(); }, document.hidden ? 60000 : 5000);
    };
    next();
    load();
  };
  const goLive = () => {
    clearTimeout(polling);
    polling = 0;
    lostSince = "";
    say("live", "Live");
  };
  const stop = (text) => {
    clearTimeout(polling);
    polling = 0;
    clearInterval(pings);
    send("bye");
    say("ended", `Not live: ${text}`);
  };

  // One stream for all tabs, in a shared worker, which no browser freezes with a tab. Without shared workers, each tab has its own stream.
  let port = null;
  let answered = 0;
  const send = (is) => port?.postMessage({ is, stream: own.stream, of: own.of, at: main().dataset.at });
  const attach = (to) => {
    port = to;
    answered = Date.now();
    port.onmessage = ({ data: { mode, name, data } }) => {
      answered = Date.now();
      if (ended) return;
      if (name) apply(name, data);
      else if (mode === "live") goLive();
      else if (mode === "poll") poll();
      else if (mode === "load") load();
    };
    port.start?.();
    send("open");
  };
  if (window.SharedWorker) {
    const worker = new SharedWorker(own.streamScript);
    worker.onerror = () => poll();
    attach(worker.port);
  } else {
    const script = document.createElement("script");
    script.src = own.streamScript;
    script.onload = () => {
      const pair = new MessageChannel();
      window.oarlockAttach(pair.port1);
      attach(pair.port2);
    };
    script.onerror = () => poll();
    document.head.append(script);
  }
  const pings = setInterval(() => {
    send("ping");
    // A worker that answers nothing is gone.
    if (Date.now() - answered > 60000 && !document.hidden) poll();
  }, 20000);
  const wake = () => {
    if (document.hidden || ended) return;
    ages();
    send("open");
    if (polling) load();
  };
  document.addEventListener("visibilitychange", wake);
  document.addEventListener("resume", wake);
  addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
  addEventListener("pagehide", () => send("bye"));
})();
