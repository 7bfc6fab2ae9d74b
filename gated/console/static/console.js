// What makes the pages live: events from the server, ages that tick, keys. Every page works without it.
// INVARIANT: text from the server becomes HTML only by way of whole pages that the server rendered and escaped.

const policy = globalThis.trustedTypes?.createPolicy("gated", { createHTML: (text) => text });
const parsed = (text) => new DOMParser().parseFromString(policy ? policy.createHTML(text) : text, "text/html");
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

const skew = document.body.dataset.now ? Number(document.body.dataset.now) / 1000 - Date.now() : 0;
const now = () => Date.now() + skew; // ms, by the server's clock

function say(text, kind = "note") {
  const line = document.createElement("p");
  line.className = `notice ${kind}`;
  line.setAttribute("role", kind === "no" ? "alert" : "status");
  line.textContent = text;
  one("#said").replaceChildren(line);
}

// --- ages and deadlines

function span(ms) {
  let seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds >= 600) seconds -= seconds % 60;
  const parts = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    if (count) parts.push(`${count}${unit}`);
  }
  return parts.slice(0, 2).join("") || "0s";
}

function tick() {
  const at = now();
  for (const time of all("time[data-since]")) set(time, span(at - Number(time.dataset.since) / 1000));
  for (const time of all("time[data-until]")) set(time, span(Number(time.dataset.until) / 1000 - at));
  for (const bar of all("progress[data-to]")) {
    const from = Number(bar.dataset.from) / 1000, to = Number(bar.dataset.to) / 1000;
    bar.value = Math.max(0, to - at) * 1000;
    bar.closest(".deadline")?.classList.toggle("late", (to - at) / (to - from) < 0.2);
  }
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- what is shown, brought up to date

async function fetched(path) {
  const answer = await fetch(path, { headers: { accept: "text/html", "x-gated-part": "yes" }, credentials: "same-origin" });
  if (answer.redirected && new URL(answer.url).pathname === "/login") return location.assign("/login");
  return answer.ok ? parsed(await answer.text()) : null;
}

// at most one at a time, and once more where something happened meanwhile
function oneAtATime(work) {
  let running = false, wanted = false;
  return async () => {
    wanted = true;
    if (running) return;
    running = true;
    try {
      while (wanted) {
        wanted = false;
        await work();
        await new Promise((done) => setTimeout(done, 250));
      }
    } finally {
      running = false;
    }
  };
}

const readList = oneAtATime(async () => {
  const list = one("#list");
  const fresh = await fetched(list.dataset.rows);
  if (!fresh) return;
  const before = new Set(all("[data-key]", list).map((row) => row.dataset.key));
  const focused = document.activeElement?.closest("[data-key]")?.dataset.key;
  list.replaceChildren(...document.adoptNode(fresh.body).childNodes);
  for (const row of all("[data-key]", list)) {
    if (before.size && !before.has(row.dataset.key)) row.classList.add("new");
    if (row.dataset.key === focused) one("a", row).focus({ preventScroll: true });
  }
  tick();
});

function swap(fresh, ...ids) {
  for (const id of ids) {
    const old = one(id), next = one(id, fresh);
    if (old && next) old.replaceWith(document.adoptNode(next));
    else if (old && !next) old.remove();
  }
  tick();
}

const ENDED = { approved: "approved", rejected: "rejected", expired: "expired, so the call is denied", cancelled: "cancelled: the run ended", superseded: "edited", closed: "closed" };

const readTicket = oneAtATime(async () => {
  const page = one("[data-ticket]");
  const fresh = await fetched(location.pathname);
  if (!fresh) return;
  const state = one("[data-ticket]", fresh)?.dataset.state;
  if (!state || page.dataset.state !== "pending") return;
  if (state === "pending") return swap(fresh, "#progress");
  page.dataset.state = state;
  const note = one("#note")?.value;
  swap(fresh, "#status", "#decision");
  say(`This ticket is ${ENDED[state] ?? state}.${note ? " Your note was not sent." : ""}`, state === "approved" ? "done" : "no");
});

const readRun = oneAtATime(async () => {
  const fresh = await fetched(location.pathname);
  if (fresh) swap(fresh, "#figures", "#lines", "#curves");
});

// --- events

function live(on) {
  const line = one("[data-line]"), word = one("span", line);
  line.className = on ? "line on" : "line off";
  line.title = on ? "Live: changes appear by themselves" : "Not live: what is shown may be old";
  word.className = on ? "hidden" : ""; // a colour alone tells not everybody
  set(word, on ? "live" : "not live");
}

function listen() {
  const source = new EventSource(document.body.dataset.live);
  const count = (open) => all("[data-open]").forEach((element) => set(element, String(open)));
  let lost = false;
  source.addEventListener("error", () => {
    lost = true;
    live(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
  source.addEventListener("hello", (event) => {
    live(true);
    count(JSON.parse(event.data).open);
    if (!lost) return;
    lost = false; // what happened meanwhile was not heard
    if (one("#list")) readList();
    if (one("[data-ticket]")) readTicket();
  });
  source.addEventListener("tickets", (event) => {
    const { open, changed } = JSON.parse(event.data);
    count(open);
    if (one("#list")?.dataset.list === "tickets") readList();
    const page = one("[data-ticket]");
    if (page && page.dataset.ticket in changed) readTicket();
    if (document.body.dataset.page === "tickets") document.title = `${open} open tickets · gated`;
  });
  source.addEventListener("runs", (event) => {
    if (one("#list")?.dataset.list === "runs") readList();
    const here = one("[data-run]")?.dataset.run;
    if (here && JSON.parse(event.data).changed.some(([thread, run]) => `${thread}/${run}` === here)) readRun();
  });
  addEventListener("pagehide", () => source.close(), { once: true });
}

// --- keys

let chord = "";

function move(by) {
  const rows = all(".rows a.row");
  const at = rows.indexOf(document.activeElement);
  rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))]?.focus();
}

const KEYS = {
  j: () => move(1),
  k: () => move(-1),
  u: () => one("[data-up]")?.click(),
  a: () => one("[data-approve]")?.focus(),
  r: () => one("[data-reject]")?.focus(),
  n: () => one("#note")?.focus(),
  e: () => one("[data-edit]")?.click(),
  f: () => one("[data-full]")?.click(),
  "/": () => one("#search")?.focus(),
  "?": () => one("#help")?.showModal(),
  "g t": () => location.assign("/"),
  "g r": () => location.assign("/runs"),
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const typing = event.target.closest?.("input:not([type=radio], [type=checkbox]), textarea, select, dialog[open]");
  if (typing) {
    if (event.key === "Escape" && !one("dialog[open]")) event.target.blur();
    return;
  }
  const key = chord ? `${chord} ${event.key}` : event.key;
  chord = event.key === "g" && !chord ? "g" : "";
  if (KEYS[key]) {
    event.preventDefault();
    KEYS[key]();
  }
});

// --- the rest

for (const button of all("[data-help]")) button.addEventListener("click", () => one("#help").showModal());
addEventListener("click", (event) => {
  for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
addEventListener("submit", (event) => {
  // a double click is one answer; the gate would take it as one anyway, by its id
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
});
addEventListener("pageshow", () => all("form[data-sent]").forEach((form) => delete form.dataset.sent));

if (document.body.dataset.live) {
  listen();
  setInterval(tick, 1000);
  setInterval(() => one("#list [data-reading]") && readList(), 3000);
  tick();
}
