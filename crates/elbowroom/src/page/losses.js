// Losses as lines of an SVG of 900 × 220 units; evaluations are dots at the number of iterations before them.
function drawLosses(svg, losses, first, evaluations) {
  const W = 900, H = 220, LEFT = 60, TOP = 12, BOTTOM = 30;
  const points = losses.map((loss, i) => [first + i, loss]).filter(([, loss]) => Number.isFinite(loss));
  const dots = evaluations.filter(([, loss]) => Number.isFinite(loss)), all = [...points, ...dots];
  if (!all.length) return;
  const least = (k, start) => all.reduce((m, p) => Math.min(m, p[k]), start), most = (k, start) => all.reduce((m, p) => Math.max(m, p[k]), start);
  const [x0, x1, y0] = [least(0, Infinity), most(0, first + 1), least(1, 0)], y1 = most(1, y0 + 1e-9);
  // Multiples of 1, 2 or 5 times a power of ten.
  const ticks = (low, high, about) => {
    const rough = (high - low) / about, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map(n => n * power).find(s => s >= rough), marks = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) marks.push([n * step, (n * step).toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)))]);
    return marks;
  };
  const x = v => LEFT + (v - x0) / Math.max(1e-9, x1 - x0) * (W - LEFT - 10), y = v => H - BOTTOM - (v - y0) / (y1 - y0) * (H - TOP - BOTTOM);
  const add = (tag, attributes, text = "") => { const e = document.createElementNS(svg.namespaceURI, tag); for (const key in attributes) e.setAttribute(key, attributes[key]); e.textContent = text; svg.append(e); };
  svg.replaceChildren();
  for (const [v, label] of ticks(y0, y1, 4)) { add("line", { x1: LEFT, x2: W - 10, y1: y(v), y2: y(v), stroke: "var(--line)" }); add("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, label); }
  for (const [v, label] of ticks(x0, x1, 6)) if (Number.isInteger(v)) add("text", { x: x(v), y: H - 10, "text-anchor": "middle" }, label);
  // A pixel shows no more than its least and most loss.
  const line = [], every = Math.max(1, Math.ceil(points.length / 1800));
  for (let i = 0; i < points.length; i += every) {
    const part = points.slice(i, i + every).sort((a, b) => a[1] - b[1]);
    line.push(...(part.length > 1 ? [part[0], part.at(-1)].sort((a, b) => a[0] - b[0]) : part));
  }
  add("polyline", { points: line.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 2 });
  for (const [a, b] of dots) add("circle", { cx: x(a), cy: y(b), r: 5, fill: "var(--peak)" });
}
