// The status page: asks the admin port for its figures once a second and shows them.

import { ago, h, levelChart, spark, svg, timeChart } from "./charts.js";

const EVERY = 1000; // ms between two questions, and while nobody looks:
const EVERY_HIDDEN = 15000;
const ASIDE_EVERY = 5000; // diagnosis, events, curve
const PATIENCE = 5000; // ms that an answer may take
const KEPT = 900; // seconds
const STALE = 4; // seconds without an answer
const GAUGES_STALE = 15; // seconds
const SILENT = 10; // seconds without a byte that are worth a line: answers in one piece are silent by nature
const TOKEN = "gateway-admin-token";
const SPANS = [[120, "2 min"], [300, "5 min"], [900, "15 min"]];

const element = (id) => document.getElementById(id);
const state = {
  status: null, history: null, last: 0, tag: "", answeredAt: 0, trouble: "", span: 300,
  diagnosis: null, events: [], lastEvent: 0, curves: null, chosen: null, missing: new Set(),
};

// ------------------------------------------------------------------------------------------------- asking

class Refused extends Error {}

async function ask(path, headers = {}) {
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (answer.status === 401 || answer.status === 403) throw new Refused(await reason(answer));
  return answer;
}

async function reason(answer) {
  try {
    return (await answer.json()).error;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

function trouble(error) {
  if (error.name === "TimeoutError") return `no answer within ${PATIENCE / 1000} s`;
  return error instanceof TypeError ? "no connection" : error.message; // what fetch throws has no words of use
}

async function refresh() {
  try {
    const answer = await ask(`status?since=${state.last}`, state.tag ? { "If-None-Match": state.tag } : {});
    if (answer.status !== 304) {
      if (!answer.ok) throw new Error(await reason(answer));
      take(await answer.json());
      state.tag = answer.headers.get("ETag") ?? "";
    }
    state.answeredAt = performance.now();
    state.trouble = "";
    door(null);
  } catch (error) {
    if (error instanceof Refused) door(error.message);
    else state.trouble = trouble(error);
  }
  draw();
  setTimeout(refresh, document.hidden ? EVERY_HIDDEN : EVERY);
}

/** Samples are added to those at hand; another process, or a gap, begins anew. */
function take(status) {
  const columns = status.history;
  const restarted = state.status && (state.status.started !== status.started || status.last < state.last);
  if (restarted) state.lastEvent = 0;
  if (restarted || !state.history || columns.number.length >= KEPT) {
    state.history = columns;
    state.events = restarted ? [] : state.events;
  } else {
    state.history = joined(state.history, columns);
  }
  state.status = status;
  state.last = status.last;
}

function joined(before, after) {
  if (Array.isArray(after)) return [...(before ?? []), ...after].slice(-KEPT);
  return Object.fromEntries(
    Object.entries({ ...before, ...after }).map(([key]) => [key, key in after ? joined(before?.[key], after[key]) : before[key]]),
  );
}

/** Routes that may not be there: their panels stay hidden then. */
async function refreshAside() {
  if (!document.hidden && element("door").hidden) {
    await Promise.all([
      optional("diagnosis", (found) => { state.diagnosis = found; }),
      optional("curve", (found) => { state.curves = found; }),
      optional(`events?since=${state.lastEvent}`, (found) => {
        state.events = [...state.events, ...found.events].slice(-100);
        state.lastEvent = found.last;
      }),
    ]);
    drawAside();
  }
  setTimeout(refreshAside, ASIDE_EVERY);
}

async function optional(path, use) {
  const route = path.split("?")[0];
  if (state.missing.has(route)) return;
  try {
    const answer = await ask(path);
    if (answer.ok) use(await answer.json());
    if (answer.status === 404) state.missing.add(route);
  } catch {
    // it is asked again in a few seconds; /status tells what is wrong with the gateway
  }
}

// ------------------------------------------------------------------------------------------------- the door

function door(why) {
  element("door").hidden = why === null;
  element("page").hidden = why !== null || !state.status;
  if (why !== null) element("door-why").textContent = why;
}

element("door").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, element("token").value.trim());
  element("token").value = "";
  element("door-why").textContent = "asking …";
});

// ------------------------------------------------------------------------------------------------- words

const OUT = new Set(["down", "open", "half_open"]);
const HEALTH = {
  up: ["ok", "up"], unknown: ["info", "not probed"], down: ["critical", "down"], open: ["critical", "failing"],
  half_open: ["warning", "on trial"], drained: ["info", "drained"],
};
const WHY = {
  queue_full: "the queue is full", deadline: "could not start in time", queue_timeout: "waited too long in the queue",
  retry_budget: "too many retries", no_backend: "no backend can serve", draining: "the gateway is shutting down",
};

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.00005) return "0 s";
  if (value < 0.01) return `${+(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${+value.toFixed(2)} s`;
  if (value < 120) return `${value.toFixed(0)} s`;
  return `${Math.round(value / 60)} min`;
}

function count(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(0)} k`;
  if (size >= 10 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(1);
}

const percent = (ratio) => `${ratio > 0 && ratio < 0.01 ? "<1" : Math.round(ratio * 100)} %`;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const objective = (status, lane) => status.objectives.ttft[lane] ?? null;

function uptime(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// ------------------------------------------------------------------------------------------------- drawing

function draw() {
  const { status } = state;
  drawLive();
  if (!status) return;
  element("page").hidden = !element("door").hidden;
  element("about").textContent = `${location.host} · ${status.version} · up ${uptime(status.at - status.started)}`;
  drawVerdict(status);
  drawTiles(status);
  replace("backends", status.backends.map((backend) => card(status, backend)));
  drawCharts(status);
  replace("lanes", [lanes(status)]);
  replace("shed", [shed(status)]);
}

const replace = (id, children) => element(id).replaceChildren(...children);
const silent = () => (state.answeredAt ? (performance.now() - state.answeredAt) / 1000 : 0);

function drawLive() {
  const lost = state.trouble && (!state.status || silent() > STALE);
  const live = element("live");
  const locked = !element("door").hidden;
  live.className = `badge ${lost ? "critical" : locked ? "warning" : state.status ? "ok" : ""}`;
  live.textContent = lost ? "no answer" : locked ? "locked" : state.status ? "live" : "connecting";
}

/** What the gateway says of itself, unless it says nothing any more. */
function drawVerdict(status) {
  const lost = silent() > STALE;
  const { level, title, more, also } = lost
    ? { level: "critical", title: "The gateway does not answer", more: `${state.trouble || "no answer"}; what is shown is ${ago(silent())}.`, also: [] }
    : status.verdict;
  document.title = `${level === "ok" ? "" : "⚠ "}${title} · Inference Gateway`;
  const told = [title, more, ...also].join("|");
  const verdict = element("verdict");
  if (verdict.dataset.told === told) return; // a screen reader says it once
  verdict.dataset.told = told;
  verdict.className = `verdict ${level}`;
  verdict.replaceChildren(h("strong", {}, title), more ? h("p", {}, more) : "", also.length ? h("p", {}, `Also: ${also.join(" · ")}`) : "");
}

function drawTiles(status) {
  const { recent } = status;
  const running = sum(status.backends.map((backend) => backend.running));
  const limit = sum(status.backends.filter((backend) => !OUT.has(backend.health) && backend.health !== "drained").map((backend) => Math.floor(backend.limit)));
  const waiting = sum(status.lanes.map((lane) => lane.depth));
  const ended = recent.completed_per_second + recent.failed_per_second + recent.gone_per_second;
  const refusedShare = recent.shed_per_second ? recent.shed_per_second / (recent.shed_per_second + ended) : 0;
  const [first] = status.lanes;
  const ttft = objective(status, first.name);
  const speed = recent.ttft_seconds[first.name] ?? { p50: null, p99: null };
  const hasObjectives = status.objectives.tpot !== null || Object.keys(status.objectives.ttft).length > 0;
  const oldest = Math.max(...status.lanes.map((lane) => lane.oldest_wait_seconds));
  replace("tiles", [
    tile("Goodput", [count(recent.good_per_second), h("small", {}, " /s")], hasObjectives
      ? `${recent.completed_per_second ? percent(recent.good_per_second / recent.completed_per_second) : "–"} in objective`
      : `${count(recent.output_tokens_per_second)} tokens/s`,
      recent.completed_per_second > 0 && recent.good_per_second < 0.9 * recent.completed_per_second ? "warning" : ""),
    tile("Refused", [count(recent.shed_per_second), h("small", {}, " /s")], `${percent(refusedShare)} of requests`, refusedShare > 0.01 ? "warning" : ""),
    tile("TTFT P50 · P99", both(speed), `${status.lanes.length > 1 ? `${first.name}, ` : ""}${wanted(ttft)}`, over(speed.p99, ttft)),
    tile("TPOT P50 · P99", both(recent.tpot_seconds), wanted(status.objectives.tpot), over(recent.tpot_seconds.p50, status.objectives.tpot)),
    tile("Running", [count(running), h("small", {}, ` / ${count(limit)}`)], limit && running >= limit ? "at the limit" : "below the limit"),
    tile("Waiting", [count(waiting)], waiting ? `oldest ${seconds(oldest)}` : "nobody waits"),
  ]);
}

const wanted = (objective) => (objective ? `objective ${seconds(objective)}` : "no objective");
const over = (value, wanted) => (value !== null && wanted && value > wanted ? "warning" : "");
const both = ({ p50, p99 }) => [seconds(p50), h("small", {}, ` · ${seconds(p99)}`)];

function tile(name, value, more, level = "") {
  return h("div", { class: `tile ${level}` }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "more" }, more));
}

function meter(ratio, level = "") {
  const width = Math.max(0, Math.min(1, ratio)) * 100;
  return svg("svg", { class: `meter ${level}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width, height: 6 }));
}

function card(status, backend) {
  const [level, word] = HEALTH[backend.health] ?? ["info", backend.health];
  const { hung } = backend;
  const past = state.history?.backends?.[backend.name];
  const stale = backend.hints_age_seconds !== null && backend.hints_age_seconds > GAUGES_STALE;
  const engine = stale ? { kv_usage: null, waiting: null } : backend.engine;
  const facts = [];
  const fact = (name, value, ratio = null, grade = "") => {
    facts.push(h("dt", {}, name), h("span", {}, ratio === null ? "" : meter(ratio, grade)), h("dd", { class: grade }, value));
  };
  const { pace_seconds: pace, pace_target_seconds: target } = backend;
  if (pace !== null) fact("Pace", target ? `${seconds(pace)} of ${seconds(target)}` : `${seconds(pace)} a token`, target ? pace / target : null, target && pace > 1.05 * target ? "warning" : "");
  if (engine.kv_usage !== null) fact("KV cache", percent(engine.kv_usage), engine.kv_usage, engine.kv_usage > 0.95 ? "warning" : "");
  else if (backend.token_limit) fact("KV, estimated", `${count(backend.tokens)} of ${count(backend.token_limit)}`, backend.tokens / backend.token_limit);
  if (engine.waiting !== null) fact("In its own queue", count(engine.waiting), null, engine.waiting > 0.2 * backend.limit && engine.waiting > 2 ? "warning" : "");
  else fact("Not started yet", count(backend.unstarted));
  if (status.backends.length > 1 && backend.share !== null) fact("Share of requests", percent(backend.share), backend.share);
  if (backend.hit_rate !== null) fact("Prompts cached", percent(backend.hit_rate), backend.hit_rate);
  if (hung || backend.silence_seconds > SILENT) fact("Silent for", seconds(backend.silence_seconds), null, hung ? "critical" : "");
  if (stale) fact("Its gauges are", `${seconds(backend.hints_age_seconds)} old`, null, "warning");
  return h("article", { class: `card ${hung ? "critical" : level}` },
    h("div", { class: "head" }, h("b", { title: backend.url }, backend.name),
      h("span", { class: `badge ${hung ? "critical" : level}` }, hung ? "silent" : word),
      backend.pinned ? h("span", { class: "badge info" }, "pinned") : ""),
    h("div", { class: "load" },
      h("div", { class: "number" }, count(backend.running), h("small", {}, ` / ${count(Math.floor(backend.limit))} running`)),
      past ? spark(past.limit.slice(-300), past.running.slice(-300), state.history.number[0]) : ""),
    h("dl", {}, facts));
}

function lanes(status) {
  const rows = status.lanes.map((lane) => {
    const grade = lane.oldest_wait_seconds > 0.8 * lane.max_wait_seconds ? "warning" : "";
    const bound = lane.threshold === null ? "longer" : `to ${count(lane.threshold)} tokens`;
    return h("tr", {}, h("td", {}, h("b", {}, lane.name), " ", h("small", { class: "aside under" }, bound)),
      h("td", {}, count(lane.depth)),
      h("td", { class: "wide" }, meter(lane.oldest_wait_seconds / lane.max_wait_seconds, grade)),
      h("td", { class: grade }, `${seconds(lane.oldest_wait_seconds)} of ${seconds(lane.max_wait_seconds)}`),
      h("td", { class: "pair" }, `${seconds(lane.recent_wait_seconds.p50)} · ${seconds(lane.recent_wait_seconds.p99)}`));
  });
  const head = h("tr", {}, h("th", {}, "Lane"), h("th", {}, "waiting"), h("th", { class: "wide" }, ""), h("th", {}, "oldest"), h("th", { class: "pair" }, "wait P50 · P99"));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, rows));
}

function shed(status) {
  const reasons = Object.entries(status.shed.by_reason).sort((a, b) => b[1] - a[1]);
  if (!reasons.length) return h("p", { class: "aside" }, "Nothing was refused.");
  const most = reasons[0][1];
  const rows = reasons.map(([name, times]) => h("tr", {}, h("td", {}, WHY[name] ?? name, " ", h("small", { class: "aside" }, name)), h("td", { class: "wide" }, meter(times / most, "shed")), h("td", {}, count(times))));
  return h("table", {}, h("tbody", {}, rows));
}

// ------------------------------------------------------------------------------------------------- charts

function drawCharts(status) {
  const past = state.history;
  if (!past.number.length) return;
  const last = (values) => values.slice(-state.span);
  const offset = last(past.number)[0];
  const common = { length: state.span, offset, ages: ages(state.span), marks: [], grain: 3 };
  const late = past.completed.map((all, index) => all - past.good[index]);
  timeChart(element("chart-requests"), {
    ...common, title: "Requests a second", least: 1, format: count, grain: 7,
    series: [
      { name: "in objective", class: "good", kind: "stack", values: last(past.good) },
      { name: "late", class: "late", kind: "stack", values: last(late) },
      { name: "failed", class: "failed", kind: "stack", values: last(past.failed) },
      { name: "refused", class: "shed", kind: "stack", values: last(past.shed) },
    ],
  });
  const total = (key) => last(past.number.map((_, index) => sum(Object.values(past.backends).map((each) => each[key][index] ?? 0))));
  timeChart(element("chart-running"), {
    ...common, title: "Requests in flight", least: 4, format: count,
    series: [
      { name: "running", class: "running", kind: "area", values: total("running") },
      { name: "limit", class: "limit", kind: "step", values: total("limit") },
      { name: "waiting here", class: "waiting", kind: "line", values: last(past.queued) },
    ],
  });
  drawSpeed(status, past, common, last);
}

function drawSpeed(status, past, common, last) {
  const first = status.lanes[0].name;
  const final = status.lanes.at(-1).name;
  const ttft = [
    { name: `${first} P99`, class: "p99", kind: "line", values: last(past.ttft[first].p99) },
    { name: `${first} P50`, class: "p50", kind: "line", values: last(past.ttft[first].p50) },
  ];
  if (final !== first && past.ttft[final]) ttft.unshift({ name: `${final} P99`, class: "long", kind: "line", values: last(past.ttft[final].p99) });
  const wanted = objective(status, first);
  timeChart(element("chart-ttft"), {
    ...common, title: "Time to first token", least: 0.1, format: seconds, series: ttft,
    marks: wanted ? [{ value: wanted, name: `objective${final === first ? "" : ` of ${first}`}` }] : [],
  });
  const { tpot } = status.objectives;
  timeChart(element("chart-tpot"), {
    ...common, title: "Time per output token", least: 0.02, format: seconds, marks: tpot ? [{ value: tpot, name: "objective" }] : [],
    series: [
      { name: "P99", class: "p99", kind: "line", values: last(past.tpot_p99) },
      { name: "P50", class: "p50", kind: "line", values: last(past.tpot_p50) },
    ],
  });
}

function ages(span) {
  return [[span, `-${span / 60} min`], [span / 2, `-${span / 120} min`], [0, "now"]];
}

function choose(id, options, chosen, choose) {
  replace(id, options.map(([value, name]) => h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, name)));
}

function chooseSpan(span) {
  state.span = span;
  choose("spans", SPANS, span, (wanted) => { chooseSpan(wanted); draw(); });
}

// ------------------------------------------------------------------------------------------------- other routes

function drawAside() {
  element("diagnosis").hidden = !state.diagnosis;
  if (state.diagnosis) replace("findings", findings(state.diagnosis));
  element("events").hidden = !state.events.length;
  const list = element("event-list");
  if (list.dataset.last !== String(state.lastEvent)) {
    list.dataset.last = String(state.lastEvent);
    list.replaceChildren(...[...state.events].reverse().map(event));
  }
  drawCurve();
}

function findings({ findings: found, unknown, window_seconds: judged }) {
  const rows = found.map((each) => h("div", { class: "finding" },
    h("h3", {}, h("span", { class: `badge ${each.severity}` }, each.severity), h("span", {}, each.title)),
    h("ul", {}, each.evidence.map((line) => h("li", {}, line))),
    each.advice.map((line) => h("p", { class: "advice" }, line))));
  const blind = (unknown ?? []).map((line) => h("p", { class: "aside" }, line));
  return [...(rows.length || !judged ? rows : [h("p", {}, "Nothing is found to be wrong.")]), ...blind];
}

function event(each) {
  const at = new Date(each.at * 1000);
  const clock = at.toLocaleTimeString([], { hour12: false });
  return h("li", { class: each.severity }, h("time", { datetime: at.toISOString(), title: at.toLocaleString() }, clock), h("span", {}, each.backend && !each.text.includes(each.backend) ? `${each.backend}: ${each.text}` : each.text));
}

function drawCurve() {
  const curves = (state.curves?.curves ?? []).filter((curve) => curve.levels.length);
  element("curve").hidden = !curves.length;
  if (!curves.length) return;
  const name = (curve) => (curve.model ? `${curve.backend} · ${curve.model}` : curve.backend);
  const curve = curves.find((each) => name(each) === state.chosen) ?? curves[0];
  choose("curve-choice", curves.map((each) => [name(each), name(each)]), name(curve), (wanted) => { state.chosen = wanted; drawCurve(); });
  const marks = [["knee", curve.knee, "knee"], ["best", curve.best, "best"], ["limit", curve.limit, `limit ${count(curve.limit)}`]]
    .filter(([, level]) => level !== null && level !== undefined)
    .map(([kind, level, text]) => ({ class: kind, level, name: text }));
  const most = 1.05 * Math.max(...curve.levels.map((each) => each.level), ...marks.map((mark) => mark.level));
  const gap = (low, high) => curve.unseen.some(([from, to]) => from > low && to < high);
  const values = (read) => curve.levels.map((each, index) => [each.level, read(each), index > 0 && !gap(curve.levels[index - 1].high, each.low)]);
  const tokens = curve.levels.some((each) => each.tokens_per_second);
  levelChart(element("curve-throughput"), {
    title: tokens ? "Output tokens a second" : "Requests a second", most, marks, format: count,
    series: [{ name: "throughput", class: "good", values: values((each) => (tokens ? each.tokens_per_second : each.requests_per_second)) }],
  });
  const streamed = curve.levels.some((each) => each.tpot);
  levelChart(element("curve-latency"), {
    title: streamed ? "Time per output token" : "Latency", most, marks, format: seconds,
    series: [
      { name: "P99", class: "p99", values: values((each) => (streamed ? each.tpot?.p99 ?? null : each.latency?.p99 ?? null)) },
      { name: "mean", class: "p50", values: values((each) => (streamed ? each.tpot?.mean ?? null : each.latency?.mean ?? null)) },
    ],
  });
  element("curve-note").textContent = curve.note ?? "Only levels that were seen are drawn; a gap in the line is a level that never was.";
}

// ------------------------------------------------------------------------------------------------- begin

chooseSpan(state.span);
window.addEventListener("resize", draw);
document.addEventListener("visibilitychange", () => { if (!document.hidden) draw(); });
refresh();
setTimeout(refreshAside, 300);
