"use strict";
// One canvas holds three charts with a common time axis: live memory, the arena, and the streams. The view is the stretch of time shown.
const page = JSON.parse(document.getElementById("data").textContent);
const why = page.why;
const byId = id => document.getElementById(id);
const r = page.residencies, steps = page.steps;
// Growing numbers are written as differences.
const summed = numbers => { let sum = 0; return numbers.map(n => sum += n); };
r.from = summed(r.from); r.op = summed(r.op); r.to = r.from.map((from, i) => from + r.length[i]);
for (const curve of [steps, page.live, page.before]) curve.at = summed(curve.at);
page.spans.start = summed(page.spans.start); page.spans.end = page.spans.start.map((start, i) => start + page.spans.duration[i]);
const COLOURS = {
  "parameter": ["#5b6b8c", "#8fa0c4"], "optimizer-state": ["#8a6d3b", "#c8a66b"], "activation": ["#2a78c2", "#5aa7ee"],
  "gradient": ["#1f8a70", "#4fc3a1"], "update": ["#7b5ea7", "#b39ddb"], "workspace": ["#b8860b", "#e6c35c"],
  "allocation": ["#2a78c2", "#5aa7ee"],
};
const STREAMS = ["compute", "to-host", "to-device"];
const ORIGINS = ["there when the iteration begins", "computed", "recomputed", "prefetched from the host"];

function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toFixed(2) + " " + unit;
  return n + " B";
}
function time(ns) {
  for (const [unit, size, least] of [["s", 1e9, 1e10], ["ms", 1e6, 1e6], ["µs", 1e3, 1e3]]) if (ns >= least) return (ns / size).toFixed(ns / size < 10 ? 2 : 1) + " " + unit;
  return Math.round(ns) + " ns";
}
const percent = share => (share >= 0 ? "+" : "") + (100 * share).toFixed(1) + " %";
const name = i => r.workspace[i] ? "workspace of " + page.names[r.name[i]] : page.names[r.name[i]];

// Words and figures.
byId("title").textContent = page.title;
function figure(label, value) {
  const group = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
  term.textContent = label; text.textContent = value; group.append(term, text); byId("figures").append(group);
}
figure("arena size", bytes(page.arena_bytes));
if (page.limit_bytes !== null) figure("limit", bytes(page.limit_bytes));
figure("unconstrained peak", bytes(page.unconstrained_peak_bytes));
figure("peak live memory", bytes(why.peak_live_bytes));
figure("fragmentation", bytes(why.fragmentation_bytes));
figure("iteration time", time(page.iteration_ns) + " (" + percent(page.overhead) + ")");
figure("tensors and workspaces", r.from.length.toLocaleString("en"));
byId("peak").textContent = `${bytes(why.peak_live_bytes)} are alive at ${why.peak.op} (${why.peak.phase}, op ${why.peak.number}), of which `
  + `${why.kinds.map(k => bytes(k.bytes) + " " + k.kind).join(", ")}. `
  + (why.allocations_only ? "The file does not tell when a tensor was used." : `The op itself needs ${bytes(why.in_use_bytes)} of it. `
  + `No plan exists below ${bytes(why.floor_bytes)}, decided by ${why.floor_op}.`);
for (const suggestion of why.suggestions) {
  const item = document.createElement("li"); item.textContent = suggestion.text; byId("suggestions").append(item);
}
if (!why.suggestions.length) byId("suggestions").remove();
const head = ["kind", "module", "at peak", "tensors", "without", "offload", "recompute"];
const table = byId("groups");
function row(cells, tag) {
  const line = document.createElement("tr");
  for (const cell of cells) { const c = document.createElement(tag); if (tag === "th") c.scope = "col"; c.textContent = cell; line.append(c); }
  table.append(line);
}
row(head, "th");
const saving = s => s ? `${bytes(s.saved_bytes)} (${percent(s.overhead)})` : "–";
for (const g of why.groups) row([g.kind, g.module, bytes(g.bytes), g.tensors, bytes(Math.max(0, why.peak_live_bytes - g.peak_without_bytes)), saving(g.offload), saving(g.recompute)], "td");
if (why.other_bytes) row(["others", "", bytes(why.other_bytes), "", "", "", ""], "td");
page.kinds.forEach(kind => {
  const item = document.createElement("li"), patch = document.createElement("i"); patch.dataset.kind = kind; item.append(patch, kind); byId("legend").append(item);
});

// The chart.
const canvas = byId("map"), context = canvas.getContext("2d");
const total = Math.max(1, steps.at[steps.at.length - 1], page.iteration_ns);
const top_ = Math.max(page.limit_bytes ?? 0, page.arena_bytes, page.unconstrained_peak_bytes, 1);
const arenaTop = Math.max(page.limit_bytes ?? 0, page.arena_bytes, 1);
let from = 0, to = total, selected = -1, matching = null, dark = matchMedia("(prefers-color-scheme: dark)").matches, frame = 0;
const start = i => steps.at[r.from[i]], end = i => steps.at[r.to[i]];
const LEFT = 74, CURVE = 120, LANE = 18, GAP = 22;
let width = 0, height = 0;
const layout = () => ({ curve: [12, 12 + CURVE], arena: [12 + CURVE + GAP, height - 3 * LANE - 2 * GAP - 8], lanes: height - 3 * LANE - GAP - 8 });
const x = t => LEFT + (t - from) / (to - from) * (width - LEFT - 8);
const when = px => from + (px - LEFT) / (width - LEFT - 8) * (to - from);
const ink = token => getComputedStyle(document.documentElement).getPropertyValue(token).trim();
function draw() {
  frame = 0;
  const scale = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  width = box.width; height = box.height;
  if (canvas.width !== Math.round(width * scale)) { canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale); }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const ground = ink("--ground"), faint = ink("--faint"), line = ink("--line"), strong = ink("--ink"), accent = ink("--accent"), peak = ink("--peak");
  context.fillStyle = ground; context.fillRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
  const { curve, arena, lanes } = layout();
  const yCurve = b => curve[1] - b / top_ * (curve[1] - curve[0]), yArena = b => arena[1] - b / arenaTop * (arena[1] - arena[0]);
  context.fillStyle = faint; context.textAlign = "right";
  for (const [b, y] of [[top_, yCurve(top_)], [0, yCurve(0)]]) context.fillText(bytes(b), LEFT - 6, y);
  for (const share of [0, 0.5, 1]) context.fillText(bytes(arenaTop * share), LEFT - 6, yArena(arenaTop * share));
  STREAMS.forEach((stream, lane) => context.fillText(stream, LEFT - 6, lanes + LANE * (lane + 0.5)));
  context.save(); context.beginPath(); context.rect(LEFT, 0, width - LEFT - 8, height); context.clip();
  // Live memory without a limit, then with this plan.
  const stepped = (at, live, colour, fill) => {
    context.beginPath(); let last = yCurve(0), open = false;
    for (let i = 0; i < at.length; i++) {
      const px = x(at[i]), y = yCurve(live[i]);
      if (px > width + 1 && open) break;
      if (!open) { context.moveTo(Math.min(px, LEFT), y); open = true; } else { context.lineTo(px, last); context.lineTo(px, y); }
      last = y;
    }
    context.lineTo(width, last); context.strokeStyle = colour; context.stroke();
    if (fill) { context.lineTo(width, yCurve(0)); context.lineTo(LEFT, yCurve(0)); context.globalAlpha = 0.18; context.fillStyle = colour; context.fill(); context.globalAlpha = 1; }
  };
  if (page.planned) stepped(page.before.at, page.before.live, faint, false);
  stepped(page.live.at, page.live.live, accent, true);
  context.setLineDash([5, 4]); context.strokeStyle = peak;
  for (const [b, y] of [[page.limit_bytes, yCurve], [page.limit_bytes, yArena]]) if (b !== null) { context.beginPath(); context.moveTo(LEFT, y(b)); context.lineTo(width, y(b)); context.stroke(); }
  context.setLineDash([]);
  // The arena. A bar narrower than a third of a pixel is drawn as one third, so that none vanishes.
  const shade = dark ? 1 : 0;
  for (let i = 0; i < r.from.length; i++) {
    const a = x(start(i)), b = x(end(i));
    if (b < LEFT || a > width) continue;
    const y = yArena(r.offset[i] + r.bytes[i]), h = Math.max(0.4, yArena(r.offset[i]) - y);
    context.globalAlpha = matching && !matching.has(i) ? 0.12 : 1;
    context.fillStyle = COLOURS[page.kinds[r.kind[i]]][shade];
    const w = Math.max(0.34, b - a);
    context.fillRect(a, y, w, h);
    if (w > 4 && h > 4) { context.strokeStyle = ground; context.lineWidth = 0.6; context.strokeRect(a, y, w, h); context.lineWidth = 1; }
    if (w > 60 && h > 13 && context.globalAlpha === 1) {
      context.save(); context.beginPath(); context.rect(Math.max(a, LEFT), y, w, h); context.clip();
      context.fillStyle = dark ? "#10141a" : "#ffffff"; context.textAlign = "left"; context.fillText(name(i), Math.max(a, LEFT) + 4, y + h / 2); context.restore();
    }
  }
  context.globalAlpha = 1;
  // The streams.
  for (let i = 0; i < page.spans.start.length; i++) {
    const a = x(page.spans.start[i]), b = x(page.spans.end[i]);
    if (b < LEFT || a > width) continue;
    const lane = page.spans.stream[i];
    context.fillStyle = page.spans.recompute[i] ? (dark ? "#ffb74d" : "#b25e00") : lane === 0 ? faint : accent;
    context.fillRect(a, lanes + LANE * lane + 2, Math.max(0.4, b - a), LANE - 4);
  }
  const at = x(page.peak_at_ns);
  context.strokeStyle = peak; context.beginPath(); context.moveTo(at, 0); context.lineTo(at, lanes); context.stroke();
  if (selected >= 0) {
    const y = yArena(r.offset[selected] + r.bytes[selected]);
    context.strokeStyle = strong; context.lineWidth = 3;
    context.strokeRect(x(start(selected)), y, Math.max(2, x(end(selected)) - x(start(selected))), Math.max(2, yArena(r.offset[selected]) - y)); context.lineWidth = 1;
  }
  context.restore();
  context.strokeStyle = line; context.strokeRect(LEFT, arena[0], width - LEFT - 8, arena[1] - arena[0]);
  context.fillStyle = faint; context.textAlign = "center";
  for (let i = 0; i <= 4; i++) { const t = from + (to - from) * i / 4; context.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center"; context.fillText(time(t), x(t), height - 12); }
}
function redraw() { if (!frame) frame = requestAnimationFrame(draw); }
function view(a, b) {
  const span = Math.min(total, Math.max(total / 1e6, b - a));
  from = Math.max(0, Math.min(total - span, a)); to = from + span; redraw();
}
function zoom(factor, around = (from + to) / 2) { view(around - (around - from) * factor, around + (to - around) * factor); }
function select(i) {
  selected = i;
  if (i < 0) { byId("details").textContent = ""; redraw(); return; }
  if (end(i) < from || start(i) > to) view(start(i) - (to - from) / 2, start(i) + (to - from) / 2);
  const op = r.op[i] >= 0 ? page.ops[r.op[i]] : null;
  const decided = page.choices[page.names[r.name[i]]] ?? [];
  byId("details").textContent = `${name(i)}: ${page.kinds[r.kind[i]]}, ${bytes(r.bytes[i])} at offset ${r.offset[i].toLocaleString("en")}\n`
    + `${ORIGINS[r.origin[i]]}${op ? ` by ${op}` : ""}; on the device from ${time(start(i))} to ${time(end(i))}`
    + decided.map(c => `\n${c.restored} at ${time(c.to_ns)}: saves ${bytes(c.bytes)} for ${time(c.to_ns - c.from_ns)}, costs ${time(c.cost_ns)}`).join("");
  redraw();
}
function hit(px, py) {
  const { arena } = layout(), t = when(px), address = (arena[1] - py) / (arena[1] - arena[0]) * arenaTop, near = 2 * (to - from) / width;
  let best = -1;
  for (let i = 0; i < r.from.length; i++)
    if (start(i) - near <= t && t < end(i) + near && r.offset[i] <= address && address < r.offset[i] + r.bytes[i]
      && (best < 0 || end(i) - start(i) < end(best) - start(best))) best = i;
  return best;
}
function find(text) {
  text = text.trim().toLowerCase();
  if (!text) { matching = null; byId("found").textContent = ""; redraw(); return; }
  matching = new Set();
  let bytesFound = 0;
  for (let i = 0; i < r.from.length; i++) if (name(i).toLowerCase().includes(text)) { matching.add(i); if (r.from[i] <= page.peak_at && page.peak_at < r.to[i]) bytesFound += r.bytes[i]; }
  byId("found").textContent = matching.size ? `${matching.size.toLocaleString("en")} found, ${bytes(bytesFound)} at the peak` : "nothing found";
  redraw();
}
let drag = null;
canvas.addEventListener("pointerdown", e => { drag = { px: e.offsetX, from, to, moved: false }; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointermove", e => {
  if (!drag) return;
  const shift = (drag.px - e.offsetX) / (width - LEFT - 8) * (drag.to - drag.from);
  if (Math.abs(e.offsetX - drag.px) > 3) drag.moved = true;
  if (drag.moved) view(drag.from + shift, drag.to + shift);
});
canvas.addEventListener("pointerup", e => { if (drag && !drag.moved) select(hit(e.offsetX, e.offsetY)); drag = null; });
canvas.addEventListener("pointercancel", () => { drag = null; });
canvas.addEventListener("wheel", e => { e.preventDefault(); zoom(Math.exp(e.deltaY / 400), when(e.offsetX)); }, { passive: false });
canvas.addEventListener("keydown", e => {
  const span = to - from, count = r.from.length;
  const next = by => { let i = selected; for (let n = 0; n < count; n++) { i = (i + by + count) % count; if (!matching || matching.has(i)) return select(i); } };
  const keys = {
    ArrowLeft: () => view(from - span / 8, to - span / 8), ArrowRight: () => view(from + span / 8, to + span / 8),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": () => view(0, total), ".": () => next(1), ",": () => next(-1),
  };
  if (keys[e.key] && count) { e.preventDefault(); keys[e.key](); }
});
document.addEventListener("keydown", e => {
  if (e.key === "/" && document.activeElement !== byId("search")) { e.preventDefault(); byId("search").focus(); }
  if (e.key === "Escape") { byId("search").value = ""; find(""); select(-1); }
});
byId("search").addEventListener("input", e => find(e.target.value));
byId("in").addEventListener("click", () => zoom(0.6));
byId("out").addEventListener("click", () => zoom(1 / 0.6));
byId("all").addEventListener("click", () => view(0, total));
function paint() {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
  document.querySelectorAll("#legend i").forEach(patch => { patch.style.background = COLOURS[patch.dataset.kind][dark ? 1 : 0]; });
  redraw();
}
byId("theme").addEventListener("click", () => { dark = !dark; paint(); });
addEventListener("resize", redraw);
paint();
