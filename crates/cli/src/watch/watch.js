// Asks for what is new once a second and draws it.
const byId = id => document.getElementById(id), losses = [], drawn = new Map();
function bytes(n) {
  for (const [name, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toFixed(2) + " " + name;
  return n + " B";
}
const seconds = s => s >= 3600 ? (s / 3600).toFixed(1) + " h" : s >= 60 ? (s / 60).toFixed(1) + " min" : s >= 1 ? s.toFixed(s < 10 ? 1 : 0) + " s" : (1000 * s).toFixed(1) + " ms";
function figure(label, text) {
  if (!drawn.has(label)) {
    const group = document.createElement("div"), term = document.createElement("dt"), value = document.createElement("dd");
    term.textContent = label; group.append(term, value); byId("figures").append(group); drawn.set(label, value);
  }
  drawn.get(label).textContent = text;
}
function drawStreams({ spans, iteration_ns: total }) {
  const svg = byId("streams"), LEFT = 90, W = 900;
  svg.replaceChildren();
  const add = (tag, attributes, text = "") => { const e = document.createElementNS(svg.namespaceURI, tag); for (const key in attributes) e.setAttribute(key, attributes[key]); e.textContent = text; svg.append(e); };
  ["compute", "to host", "to device"].forEach((name, i) => add("text", { x: LEFT - 8, y: 28 * i + 18, "text-anchor": "end" }, name));
  // What begins in the unit in which the bar before it ended is part of that bar.
  const bars = [[], [], []];
  for (const [stream, start, end] of spans) {
    const a = LEFT + start / total * (W - LEFT), b = LEFT + end / total * (W - LEFT), last = bars[stream].at(-1);
    if (last && a - last[1] < 0.5) last[1] = Math.max(last[1], b); else bars[stream].push([a, Math.max(b, a + 0.5)]);
  }
  bars.forEach((bars, i) => bars.forEach(([a, b]) => add("rect", { x: a.toFixed(1), y: 28 * i + 4, width: (b - a).toFixed(1), height: 20, fill: i ? "var(--accent)" : "var(--faint)" })));
}
async function ask() {
  let state;
  try { state = await (await fetch("/state?from=" + losses.length)).json(); }
  catch { byId("now").textContent = "The training has ended, or its process has."; return; }
  losses.push(...state.losses.map(loss => loss ?? NaN));
  if (state.title) document.querySelector("h1").textContent = document.title = state.title;
  const { last } = state;
  byId("now").textContent = `${state.stage || "running"}: ${state.done} of ${state.iterations} iterations`;
  byId("progress").max = state.iterations || 1; byId("progress").value = state.done;
  if (last) {
    figure("iteration", `${last.number}, ${last.planned ? "planned" : "dynamic"}`);
    if (losses.length) figure("loss", Number.isFinite(losses.at(-1)) ? losses.at(-1).toFixed(6) : "not finite");
    figure("iteration time", seconds(last.iteration_ns / 1e9));
    figure("peak of the arena", bytes(last.measured_peak_bytes));
    figure("limit", bytes(last.limit_bytes));
    byId("memory").max = last.limit_bytes || 1; byId("memory").value = last.measured_peak_bytes;
  }
  if (state.left_seconds !== null) figure("time left", seconds(state.left_seconds));
  if (losses.length) drawLosses(byId("losses"), losses, state.first_iteration, state.evaluations);
  if (state.streams.spans.length) drawStreams(state.streams);
  setTimeout(ask, 1000);
}
ask();
