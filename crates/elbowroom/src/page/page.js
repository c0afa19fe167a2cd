"use strict";
// One canvas holds three charts with a common time axis: live memory, the arena, and the streams. The view is the stretch of time shown.
const page = JSON.parse(document.getElementById("data").textContent);
const why = page.why, unit = page.unit_bytes;
const byId = id => document.getElementById(id);

// Growing numbers are written as differences, small ones as digits, and names without what they share with the name before.
const summed = numbers => { let sum = 0; return Float64Array.from(numbers, n => sum += n); };
const digits = text => Uint8Array.from(text, c => c.charCodeAt(0) - 48);
let previous = "";
const names = page.names.map(coded => previous = previous.slice(0, parseInt(coded[0], 36)) + coded.slice(1));
const ops = { name: summed(page.ops.name), kind: page.ops.kind };
const r = page.residencies, count = r.from.length;
for (const column of ["name", "from", "op"]) r[column] = summed(r[column]);
for (const column of ["workspace", "kind", "origin"]) r[column] = digits(r[column]);
for (const column of ["offset", "bytes"]) r[column] = Float64Array.from(r[column], n => n * unit);
r.to = r.from.map((from, i) => from + r.length[i]);
const at = summed(page.steps.at);
r.start = r.from.map(position => at[position]); r.end = r.to.map(position => at[position]);
const curveOf = (curve, time) => ({ at: summed(curve.at).map(time), live: summed(curve.live).map(n => n * unit) });
const live = curveOf(page.live, position => at[position]), before = curveOf(page.before, time => time);
function course(spans) {
  const ends = [0, 0, 0], what = [0, 0, 0], start = [], end = [], stream = digits(spans.stream);
  const ids = spans.what.map((n, i) => what[stream[i]] += n);
  spans.gap.forEach((gap, i) => { start.push(ends[stream[i]] + gap); ends[stream[i]] = start[i] + spans.duration[i]; end.push(ends[stream[i]]); });
  return { at: summed(spans.at), what: ids, start: Float64Array.from(start), end: Float64Array.from(end), stream, recompute: digits(spans.recompute) };
}
const predicted = course(page.spans), measured = page.run && course(page.run.measured);

// Colours of the kinds, for light and dark, and the colours of names on them.
const COLOURS = {
  "parameter": ["#5b6b8c", "#8fa0c4"], "optimizer-state": ["#8a6d3b", "#c8a66b"], "activation": ["#2a78c2", "#5aa7ee"],
  "gradient": ["#197a62", "#4fc3a1"], "update": ["#7b5ea7", "#b39ddb"], "workspace": ["#8f6a00", "#e6c35c"],
  "allocation": ["#2a78c2", "#5aa7ee"],
};
// A history of allocations has no streams.
const STREAMS = why.allocations_only ? [] : ["compute", "to host", "to device"];
const ORIGINS = ["there when the iteration begins", why.allocations_only ? "allocated" : "computed", "recomputed", "prefetched from the host"];

function bytes(n) {
  for (const [name, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (n >= size) return (n / size).toFixed(2) + " " + name;
  return n + " B";
}
function time(ns) {
  for (const [name, size, least] of [["s", 1e9, 1e10], ["ms", 1e6, 1e6], ["µs", 1e3, 1e3]]) if (ns >= least) return (ns / size).toFixed(ns / size < 10 ? 2 : 1) + " " + name;
  return Math.round(ns) + " ns";
}
const percent = share => (share >= 0 ? "+" : "") + (100 * share).toFixed(1) + " %";
const whole = n => n.toLocaleString("en");
const name = i => r.workspace[i] ? "workspace of " + names[r.name[i]] : names[r.name[i]];
// The line of the user's program that calls an op, where it is known.
const opLine = op => page.op_lines[page.ops.line[op]] || "";
const opName = op => `${names[ops.name[op]]} (${page.op_kinds[ops.kind[op]]})`;

// Words and figures. Each figure is an element that also holds the number as `--json` prints it.
function figure(value, text) {
  const element = document.createElement("data");
  element.value = value; element.textContent = text;
  return element;
}
const size = n => figure(n, bytes(n)), duration = ns => figure(ns, time(ns)), share = x => figure(x, percent(x)), number = n => figure(n, whole(n));
const put = (element, ...parts) => (element.append(...parts), element);
const make = (tag, ...parts) => put(document.createElement(tag), ...parts);
put(byId("title"), page.title);
function item(label, ...parts) { byId("figures").append(make("div", make("dt", label), make("dd", ...parts))); }
item("arena size", size(page.arena_bytes));
if (page.limit_bytes !== null) item("limit", size(page.limit_bytes));
item("unconstrained peak", size(page.unconstrained_peak_bytes));
item("peak live memory", size(why.peak_live_bytes));
item("fragmentation", size(why.fragmentation_bytes));
if (why.smallest_limit_bytes !== null) item("smallest limit found", size(why.smallest_limit_bytes));
if (why.allocations_only) item("length of the history", duration(page.iteration_ns));
else item("iteration time", duration(page.iteration_ns), " (", share(page.overhead), ")");
item("tensors and workspaces", number(count));
{
  const parts = why.kinds.flatMap((k, i) => [i ? ", " : "", size(k.bytes), " " + k.kind]);
  put(byId("peak"), size(why.peak_live_bytes), ` are alive at ${why.peak.op} (${why.allocations_only ? "event" : why.peak.phase + ", op"} `, number(why.peak.number), why.peak.line ? `, called at ${why.peak.line}` : "", "), of which ", ...parts, ". ");
  if (why.allocations_only) put(byId("peak"), "The file does not tell when a tensor was used.");
  else put(byId("peak"), "The op itself needs ", size(why.in_use_bytes), ` of it. No plan exists below `, size(why.floor_bytes), `, decided by ${why.floor_op}.`);
  if (why.prompt_updates) put(byId("peak"), " If each update ran right behind its gradient, the peak would be ", size(why.prompt_updates.saved_bytes), " lower.");
}
for (const suggestion of why.suggestions) byId("suggestions").append(make("li", suggestion.text));
if (!why.suggestions.length) byId("suggestions").remove();
function row(table, cells, tag) {
  table.append(make("tr", ...cells.map((cell, i) => {
    const c = make(tag, ...[cell].flat());
    if (tag === "th") c.scope = "col";
    return c;
  })));
}
{
  const treated = !why.planned && !why.allocations_only, saving = s => s ? [size(s.saved_bytes), " (", share(s.overhead), ")"] : "–";
  put(byId("groups-words"), "“Peak without it”: how high the peak is if nothing of the group existed; it is then at another op. "
    + (treated ? "Offload and recompute: how far it falls if this is done to what is idle at the peak, and the predicted overhead." : ""));
  row(byId("groups"), ["kind", "module", "at peak", "tensors", "peak without it", "at", ...(treated ? ["offload", "recompute"] : [])], "th");
  for (const g of why.groups) row(byId("groups"), [g.kind, g.module, size(g.bytes), number(g.tensors), size(g.peak_without_bytes), g.next_peak.op, ...(treated ? [saving(g.offload), saving(g.recompute)] : [])], "td");
  if (why.other_bytes) row(byId("groups"), ["others", "", size(why.other_bytes), "", "", "", ...(treated ? ["", ""] : [])], "td");
}

// A training: what was measured against what was predicted, and the losses.
if (page.run) {
  const run = page.run.report, table = byId("measured"), losses = run.losses ?? [];
  byId("run").hidden = false;
  const done = (run.planned_iterations ?? 0) + (run.dynamic_iterations ?? 0);
  put(byId("run-words"), number(done), " iterations in batches of ", number(run.batch), ", of which ", number(run.planned_iterations), " followed a plan; ending: " + run.ending + ". ",
    run.verified === true ? "Losses and parameters equal those of a run without a limit to the bit." : "");
  row(table, ["one iteration", "predicted", "measured"], "th");
  row(table, ["peak of the arena", size(run.predicted_peak_bytes), size(run.measured_peak_bytes)], "td");
  row(table, ["iteration time", duration(run.iteration_ns), duration(run.measured_iteration_ns)], "td");
  row(table, ["overhead", share(run.overhead), share(run.measured_overhead)], "td");
  row(table, ["copied to the host", size(run.to_host_bytes), size(run.measured_to_host_bytes)], "td");
  row(table, ["copied to the device", size(run.to_device_bytes), size(run.measured_to_device_bytes)], "td");
  row(table, ["recomputed ops", number(run.recomputed_ops), number(run.measured_recomputed_ops)], "td");
  if (run.peak_resident_bytes) row(table, ["memory of the whole process", "", size(run.peak_resident_bytes)], "td");
  drawLosses(byId("losses"), losses, run.first_iteration ?? 0, (run.eval_iterations ?? []).map((n, i) => [n, run.eval_loss[i]]));
  const finite = losses.filter(Number.isFinite);
  if (finite.length) put(byId("losses-caption"), "Loss of every iteration, from ", figure(finite[0], finite[0].toPrecision(5)), " to ", figure(finite.at(-1), finite.at(-1).toPrecision(5)), run.eval_loss?.length ? "; dots: evaluations" : "");
  else byId("losses").parentElement.remove();
}

// The chart.
page.kinds.forEach((kind, k) => {
  if (!r.kind.includes(k)) return;
  const patch = document.createElement("i"); patch.dataset.kind = kind; byId("legend").append(make("li", patch, kind));
});
const canvas = byId("map"), context = canvas.getContext("2d");
const total = Math.max(1, at[at.length - 1], page.iteration_ns);
const curveTop = Math.max(page.limit_bytes ?? 0, page.arena_bytes, page.unconstrained_peak_bytes, 1);
const arenaTop = Math.max(page.limit_bytes ?? 0, page.arena_bytes, 1);
let from = 0, to = total, selected = -1, matching = null, dark = matchMedia("(prefers-color-scheme: dark)").matches, frame = 0, shown = predicted, inks = null;
const LEFT = 78, RIGHT = 8, CURVE = 120, LANE = 18, GAP = 22;
let width = 0, height = 0, bitmap = null;
const BELOW = STREAMS.length ? STREAMS.length * LANE + GAP + 8 : GAP;
const layout = () => ({ curve: [12, 12 + CURVE], arena: [12 + CURVE + GAP, height - BELOW - GAP / 2], lanes: height - BELOW });
const x = t => LEFT + (t - from) / (to - from) * (width - LEFT - RIGHT);
const when = px => from + (px - LEFT) / (width - LEFT - RIGHT) * (to - from);
const ink = token => getComputedStyle(document.documentElement).getPropertyValue(token).trim();
const rgba = hex => { const n = parseInt(hex.slice(1), 16); return [n >> 16, n >> 8 & 255, n & 255]; };
// A pixel as the canvas stores it: red is the lowest byte.
const pixel = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0;
const mixed = (a, b, part) => a.map((channel, i) => Math.round(channel * part + b[i] * (1 - part)));
function paint() {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
  document.querySelectorAll("#legend i").forEach(patch => { patch.style.background = COLOURS[patch.dataset.kind][dark ? 1 : 0]; });
  inks = Object.fromEntries(["ground", "faint", "line", "ink", "accent", "peak", "recompute"].map(name => [name, ink("--" + name)]));
  const ground = rgba(inks.ground), kinds = page.kinds.map(kind => rgba(COLOURS[kind][dark ? 1 : 0]));
  inks.pixels = [kinds.map(pixel), kinds.map(colour => pixel(mixed(colour, ground, 0.15)))];
  inks.groundPixel = pixel(ground);
  redraw();
}

// The arena is painted pixel by pixel: bars do not overlap, so this takes as long for 50,000 of them as for few. A bar is at least a pixel wide
// and high, so that none vanishes, and has a gap to its neighbours where there is room for one.
function paintArena(top, bottom, scale) {
  const w = Math.round((width - LEFT - RIGHT) * scale), h = Math.round((bottom - top) * scale);
  if (w < 1 || h < 1) return;
  if (!bitmap || bitmap.width !== w || bitmap.height !== h) bitmap = context.createImageData(w, h);
  const pixels = new Uint32Array(bitmap.data.buffer), [full, pale] = inks.pixels;
  pixels.fill(inks.groundPixel);
  const across = w / (to - from), up = h / arenaTop;
  for (let i = 0; i < count; i++) {
    if (r.end[i] < from || r.start[i] > to) continue;
    const left = Math.max(0, Math.floor((r.start[i] - from) * across));
    let right = Math.min(w, Math.max(left + 1, Math.floor((r.end[i] - from) * across)));
    const low = Math.max(0, Math.floor(r.offset[i] * up));
    let high = Math.min(h, Math.max(low + 1, Math.floor((r.offset[i] + r.bytes[i]) * up)));
    if (right - left > 4 && high - low > 4) { right--; high--; }
    const colour = (matching && !matching.has(i) ? pale : full)[r.kind[i]];
    for (let y = h - high; y < h - low; y++) pixels.fill(colour, y * w + left, y * w + right);
  }
  context.putImageData(bitmap, Math.round(LEFT * scale), Math.round(top * scale));
}

// A curve by columns of pixels: its least and most bytes in each.
function columns(curve, scale) {
  const n = Math.max(1, Math.round((width - LEFT - RIGHT) * scale)), low = new Float64Array(n).fill(Infinity), high = new Float64Array(n).fill(-Infinity);
  let i = 0, value = 0;
  for (let begin = 0, end = curve.at.length; begin < end;) { const middle = (begin + end) >> 1; if (curve.at[middle] <= from) { begin = middle + 1; i = begin; } else end = middle; }
  value = i ? curve.live[i - 1] : 0;
  for (let column = 0; column < n; column++) {
    const until = from + (to - from) * (column + 1) / n;
    low[column] = high[column] = value;
    for (; i < curve.at.length && curve.at[i] <= until; i++) {
      value = curve.live[i];
      if (value < low[column]) low[column] = value;
      if (value > high[column]) high[column] = value;
    }
  }
  return { n, low, high };
}
function drawCurve(curve, y, colour, fill, scale) {
  const { n, low, high } = columns(curve, scale), base = y(0);
  if (fill) {
    context.globalAlpha = 0.18; context.fillStyle = colour;
    for (let i = 0; i < n; i++) { const py = y(high[i]); context.fillRect(LEFT + i / scale, py, 1 / scale, base - py); }
    context.globalAlpha = 1;
  }
  context.fillStyle = colour;
  for (let i = 0; i < n; i++) {
    // Joined with the column before.
    const top = y(Math.max(high[i], i ? low[i - 1] : high[i])), bottom = y(Math.min(low[i], i ? high[i - 1] : low[i]));
    context.fillRect(LEFT + i / scale, top - 0.5, 1 / scale, bottom - top + 1);
  }
}
function draw() {
  frame = 0;
  const scale = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  width = canvas.clientWidth || box.width; height = canvas.clientHeight || box.height;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) { canvas.width = Math.round(width * scale); canvas.height = Math.round(height * scale); }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = inks.ground; context.fillRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
  const { curve, arena, lanes } = layout();
  const yCurve = b => curve[1] - b / curveTop * (curve[1] - curve[0]), yArena = b => arena[1] - b / arenaTop * (arena[1] - arena[0]);
  paintArena(arena[0], arena[1], scale);
  context.fillStyle = inks.faint; context.textAlign = "right";
  for (const b of [curveTop, 0]) context.fillText(bytes(b), LEFT - 6, yCurve(b));
  for (const part of [0, 0.5, 1]) context.fillText(bytes(Math.round(arenaTop * part)), LEFT - 6, yArena(arenaTop * part));
  STREAMS.forEach((stream, lane) => context.fillText(stream, LEFT - 6, lanes + LANE * (lane + 0.5)));
  context.save(); context.beginPath(); context.rect(LEFT, 0, width - LEFT - RIGHT, height); context.clip();
  // Live memory without a limit, then with this plan.
  if (page.planned) drawCurve(before, yCurve, inks.faint, false, scale);
  drawCurve(live, yCurve, inks.accent, true, scale);
  context.setLineDash([5, 4]); context.strokeStyle = inks.peak;
  if (page.limit_bytes !== null) for (const y of [yCurve(page.limit_bytes), yArena(page.limit_bytes)]) { context.beginPath(); context.moveTo(LEFT, y); context.lineTo(width, y); context.stroke(); }
  context.setLineDash([]);
  // Names, where there is room for them.
  context.fillStyle = dark ? "#10141a" : "#ffffff"; context.textAlign = "left";
  const least = 60 / (width - LEFT - RIGHT) * (to - from), tall = 13 / (arena[1] - arena[0]) * arenaTop;
  for (let i = 0; i < count; i++) {
    if (r.bytes[i] < tall || r.end[i] - r.start[i] < least || r.end[i] < from || r.start[i] > to || matching && !matching.has(i)) continue;
    const a = Math.max(x(r.start[i]), LEFT), b = Math.min(x(r.end[i]), width - RIGHT), y = yArena(r.offset[i] + r.bytes[i]);
    if (b - a < 50) continue;
    const text = name(i), room = Math.floor((b - a - 8) / 6.4);
    context.fillText(text.length > room ? "…" + text.slice(text.length - room + 1) : text, a + 4, (y + yArena(r.offset[i])) / 2, b - a - 6);
  }
  // The streams. What ends in the pixel in which the bar before it ended is part of that bar.
  const last = [-1, -1, -1];
  for (let i = 0; i < shown.start.length && STREAMS.length; i++) {
    if (shown.end[i] < from || shown.start[i] > to) continue;
    const lane = shown.stream[i], a = x(shown.start[i]), b = Math.max(x(shown.end[i]), a + 0.4), column = Math.floor(b * scale);
    if (column === last[lane]) continue;
    last[lane] = column;
    context.fillStyle = shown.recompute[i] ? inks.recompute : lane === 0 ? inks.faint : inks.accent;
    context.fillRect(a, lanes + LANE * lane + 2, b - a, LANE - 4);
  }
  const peak = x(page.peak_at_ns);
  context.strokeStyle = inks.peak; context.beginPath(); context.moveTo(peak, 0); context.lineTo(peak, lanes); context.stroke();
  if (selected >= 0) {
    const y = yArena(r.offset[selected] + r.bytes[selected]), a = x(r.start[selected]);
    context.strokeStyle = inks.ink; context.lineWidth = 3;
    context.strokeRect(a, y, Math.max(2, x(r.end[selected]) - a), Math.max(2, yArena(r.offset[selected]) - y)); context.lineWidth = 1;
  }
  context.restore();
  context.strokeStyle = inks.line; context.strokeRect(LEFT, arena[0], width - LEFT - RIGHT, arena[1] - arena[0]);
  context.fillStyle = inks.faint;
  const marks = width < 500 ? 2 : 4;
  for (let i = 0; i <= marks; i++) { const t = from + (to - from) * i / marks; context.textAlign = i === 0 ? "left" : i === marks ? "right" : "center"; context.fillText(time(t), x(t), height - 12); }
}
function redraw() { if (!frame) frame = requestAnimationFrame(draw); }
function view(a, b) {
  const span = Math.min(total, Math.max(total / 1e6, b - a));
  from = Math.max(0, Math.min(total - span, a)); to = from + span; redraw();
}
function zoom(factor, around = (from + to) / 2) { view(around - (around - from) * factor, around + (to - around) * factor); }

// The last op before a position, which is the last that can need what is released there.
function opBefore(position) {
  let found = -1;
  for (let begin = 0, end = predicted.at.length; begin < end;) { const middle = (begin + end) >> 1; if (predicted.at[middle] < position) { found = middle; begin = middle + 1; } else end = middle; }
  while (found >= 0 && predicted.stream[found] !== 0) found--;
  return found < 0 ? null : opName(predicted.what[found]);
}
// Where a tensor comes from: the line of Python of `function (file.py:12)`, or the module of `layer1.0.conv1.weight`.
function place(text) {
  const line = /^(.*) \((.+):(\d+)\)$/.exec(text);
  if (line) return `\nPython: line ${line[3]} of ${line[2]}, in ${line[1]}`;
  return text.includes(".") ? `\nmodule: ${text.slice(0, text.lastIndexOf("."))}` : "";
}
function select(i) {
  selected = i;
  if (i < 0) { byId("details").textContent = ""; redraw(); return; }
  if (r.end[i] < from || r.start[i] > to) view(r.start[i] - (to - from) / 2, r.start[i] + (to - from) / 2);
  const op = r.op[i] >= 0 && !why.allocations_only ? ` by ${opName(r.op[i])}` : "", until = why.allocations_only || r.to[i] >= at.length - 1 ? null : opBefore(r.to[i]);
  const decided = page.choices[names[r.name[i]]] ?? [];
  byId("details").textContent = `${name(i)}: ${page.kinds[r.kind[i]]}, ${bytes(r.bytes[i])} at offset ${whole(r.offset[i])}`
    + place(names[r.name[i]])
    + (r.op[i] >= 0 && opLine(r.op[i]) ? `\nPython: called at ${opLine(r.op[i])}` : "")
    + `\n${ORIGINS[r.origin[i]]}${op}; on the device from ${time(r.start[i])} to ${time(r.end[i])}${until ? `, the last op before its release is ${until}` : ""}`
    + decided.map(c => `\n${c.restored} at ${time(c.to_ns)}: saves ${bytes(c.bytes)} for ${time(c.to_ns - c.from_ns)}, costs ${time(c.cost_ns)}`).join("");
  redraw();
}
function hit(px, py) {
  const { arena } = layout(), t = when(px), address = (arena[1] - py) / (arena[1] - arena[0]) * arenaTop, near = 2 * (to - from) / width;
  let best = -1;
  for (let i = 0; i < count; i++)
    if (r.start[i] - near <= t && t < r.end[i] + near && r.offset[i] <= address && address < r.offset[i] + r.bytes[i]
      && (best < 0 || r.end[i] - r.start[i] < r.end[best] - r.start[best])) best = i;
  return best;
}
// What runs on a stream under the pointer.
function running(px, py) {
  const lane = Math.floor((py - layout().lanes) / LANE), t = when(px), near = (to - from) / width;
  if (lane < 0 || lane >= STREAMS.length) return "";
  for (let i = 0; i < shown.start.length; i++)
    if (shown.stream[i] === lane && shown.start[i] - near <= t && t < shown.end[i] + near)
      return (lane ? names[shown.what[i]] : (shown.recompute[i] ? "recompute " : "") + opName(shown.what[i])) + ", " + time(shown.end[i] - shown.start[i]) + (lane || !opLine(shown.what[i]) ? "" : ", called at " + opLine(shown.what[i]));
  return "idle";
}
function hover(px, py) {
  const tip = byId("hover"), { arena, lanes } = layout();
  let text = "";
  if (px >= LEFT && py >= arena[0] && py <= arena[1]) { const i = hit(px, py); if (i >= 0) text = `${name(i)}, ${bytes(r.bytes[i])}`; } else if (px >= LEFT && py >= lanes) text = running(px, py);
  tip.hidden = !text; tip.textContent = text;
  if (text) { tip.style.left = Math.max(0, Math.min(px + 12, width - 200)) + "px"; tip.style.top = Math.min(py + 14, height - 30) + "px"; }
}
const lower = names.map(text => text.toLowerCase());
function find(text) {
  text = text.trim().toLowerCase();
  if (!text) { matching = null; byId("found").textContent = ""; redraw(); return; }
  matching = new Set();
  let bytesFound = 0;
  for (let i = 0; i < count; i++) if (lower[r.name[i]].includes(text) || r.workspace[i] && name(i).toLowerCase().includes(text)) { matching.add(i); if (r.from[i] <= page.peak_at && page.peak_at < r.to[i]) bytesFound += r.bytes[i]; }
  byId("found").textContent = matching.size ? `${whole(matching.size)} found, ${bytes(bytesFound)} at the peak` : "nothing found";
  redraw();
}
let drag = null;
canvas.addEventListener("pointerdown", e => { drag = { px: e.offsetX, from, to, moved: false }; canvas.setPointerCapture(e.pointerId); });
canvas.addEventListener("pointermove", e => {
  if (!drag) return hover(e.offsetX, e.offsetY);
  const shift = (drag.px - e.offsetX) / (width - LEFT - RIGHT) * (drag.to - drag.from);
  if (Math.abs(e.offsetX - drag.px) > 3) { drag.moved = true; byId("hover").hidden = true; }
  if (drag.moved) view(drag.from + shift, drag.to + shift);
});
canvas.addEventListener("pointerup", e => { if (drag && !drag.moved) select(hit(e.offsetX, e.offsetY)); drag = null; });
canvas.addEventListener("pointercancel", () => { drag = null; });
canvas.addEventListener("pointerleave", () => { byId("hover").hidden = true; });
canvas.addEventListener("wheel", e => { e.preventDefault(); zoom(Math.exp(e.deltaY / 400), when(e.offsetX)); }, { passive: false });
canvas.addEventListener("keydown", e => {
  const span = to - from;
  const next = by => { let i = selected; for (let n = 0; n < count; n++) { i = (i + by + count) % count; if (!matching || matching.has(i)) return select(i); } };
  const keys = {
    ArrowLeft: () => view(from - span / 8, to - span / 8), ArrowRight: () => view(from + span / 8, to + span / 8),
    "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": () => view(0, total), ".": () => next(1), ",": () => next(-1),
  };
  if (keys[e.key] && count && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); }
});
document.addEventListener("keydown", e => {
  if (e.key === "/" && document.activeElement !== byId("search")) { e.preventDefault(); byId("search").focus(); }
  if (e.key === "Escape") { byId("search").value = ""; find(""); select(-1); }
});
byId("search").addEventListener("input", e => find(e.target.value));
byId("in").addEventListener("click", () => zoom(0.6));
byId("out").addEventListener("click", () => zoom(1 / 0.6));
byId("all").addEventListener("click", () => view(0, total));
if (measured) {
  const name = () => { byId("course").textContent = shown === predicted ? "Show measured streams" : "Show predicted streams"; };
  byId("course").hidden = false; name();
  byId("course").addEventListener("click", () => { shown = shown === predicted ? measured : predicted; name(); redraw(); });
}
byId("theme").addEventListener("click", () => { dark = !dark; paint(); });
addEventListener("resize", redraw);
paint();
