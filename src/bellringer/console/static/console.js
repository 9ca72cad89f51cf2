// Keeps an open page current. Everything here is an addition: each page says the same without it.
"use strict";

const live = { source: null, timer: null };

// The stream

function connect() {
  const url = document.body.dataset.live;
  if (!url || live.source || document.hidden) return;
  const source = new EventSource(url);
  live.source = source;
  source.addEventListener("fragments", (event) => {
    show("live", "Live");
    apply(JSON.parse(event.data));
  });
  source.addEventListener("trouble", () => show("trouble", "Database away"));
  source.addEventListener("signed-out", () => {
    disconnect();
    location.assign(`/console/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  });
  source.onerror = () => {
    show("lost", "Not connected");
    // The browser tries again by itself, except after an answer that was no stream: a proxy's, while we restart.
    if (source.readyState === EventSource.CLOSED) {
      disconnect();
      live.timer = setTimeout(connect, 2000);
    }
  };
}

function disconnect() {
  clearTimeout(live.timer);
  if (live.source) live.source.close();
  live.source = null;
}

function show(state, text) {
  const badge = document.getElementById("live-state");
  if (!badge || badge.dataset.state === state) return;
  badge.hidden = false;
  badge.dataset.state = state;
  badge.querySelector(".live-text").textContent = text;
}

// Browsers allow few connections to one host: a page that nobody sees gives its own back.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", connect);

// New HTML in place of old: what stays keeps its node, and with it focus, selection and open details

function apply(fragments) {
  for (const [name, html] of Object.entries(fragments)) {
    const place = document.querySelector(`[data-fragment="${name}"]`);
    if (!place) continue;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    morphChildren(place, fresh.content);
    if ("refresh" in place.dataset) refresh();
  }
  tick();
}

function morphChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const known = next.dataset && next.dataset.key ? keyed.get(next.dataset.key) : null;
    if (known && known !== at) old.insertBefore(known, at);
    const here = known || at;
    if (here && isAlike(here, next)) {
      at = here.nextSibling;
      morph(here, next);
    } else {
      old.insertBefore(next, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function isAlike(old, fresh) {
  const keyOf = (node) => (node.dataset ? node.dataset.key : undefined);
  return old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

function morph(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the reader's choice once they are there.
    if (!fresh.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
  }
  const before = "number" in old.dataset ? old.textContent : null;
  morphChildren(old, fresh);
  if (before !== null && before !== old.textContent) announce(old, before);
}

function announce(element, before) {
  restart(element, "changed");
  const value = (text) => Number(text.replaceAll(",", ""));
  const isSent = element.closest('[data-key="sent"]') !== null;
  if (isSent && value(element.textContent) > value(before)) {
    for (const bell of document.querySelectorAll(".bell, .bell-icon")) restart(bell, "ringing");
  }
}

function restart(element, animation) {
  element.classList.remove(animation);
  void element.getBoundingClientRect();
  element.classList.add(animation);
}

// A page that follows one notification is fetched again when something has happened, until nothing more can

let refreshing = false;

async function refresh() {
  if (refreshing) return;
  refreshing = true;
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const isOver = !page.body.dataset.live;
    if (isOver) {
      disconnect();
      delete document.body.dataset.live;
    } else {
      // These are ours: the page that was fetched does not know their state.
      page.querySelector("[data-refresh]").replaceWith(document.querySelector("[data-refresh]").cloneNode(true));
      page.getElementById("live-state").replaceWith(document.getElementById("live-state").cloneNode(true));
    }
    morphChildren(document.querySelector("main"), page.querySelector("main"));
    tick();
    addCopyButtons();
  } catch {
    // Without a connection there is nothing to show; the stream says so.
  } finally {
    refreshing = false;
  }
}

// Times in words, as `bellringer.console.formats.relative` says them

function tick() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[datetime]")) {
    const text = relative((now - Date.parse(element.dateTime)) / 1000);
    if (element.textContent !== text) element.textContent = text;
  }
}

function relative(seconds) {
  if (seconds < 0) return `in ${coarse(Math.ceil(-seconds))}`;
  return seconds < 5 ? "just now" : `${coarse(Math.floor(seconds))} ago`;
}

function coarse(seconds) {
  for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= unit) return `${Math.floor(seconds / unit)} ${name}`;
  }
  return `${seconds} s`;
}

// What a plot says where the pointer is: its title, without the wait for it

document.addEventListener("pointerover", (event) => {
  for (const reading of document.querySelectorAll(".plot-reading")) {
    const moment = event.target.closest(".plot-moment");
    const isHere = moment !== null && reading.parentElement.contains(moment);
    reading.textContent = isHere ? moment.querySelector("title").textContent : "";
  }
});

// Commands to paste

function addCopyButtons() {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll("[data-copy]:not(:has(.copy))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
}

addCopyButtons();
tick();
setInterval(tick, 1000);
