// The first picture: time against spending. Down is faster, left is cheaper.
const NAMESPACE = "http://www.w3.org/2000/svg";
let numDrawn = 0;
function element(parent, tag, attributes, text) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
// Returns where a value of an axis lies between two ends, in pixels.
function scaleOf(axis, from, to) {
  const [low, high] = axis.range;
  return (value) => {
    const at = axis.type === "log" ? Math.log10(value) : value;
    return from + ((at - low) / (high - low)) * (to - from);
  };
}
function drawPicture(data, width) {
  const height = Math.max(280, Math.min(400, 0.78 * width));
  const left = 64, right = width - 14, top = 12, bottom = height - 44;
  const x = scaleOf(data.x, left, right), y = scaleOf(data.y, bottom, top);
  const svg = element(document.createDocumentFragment(), "svg", {
    viewBox: `0 0 ${width} ${height}`, width: "100%", role: "img",
    "aria-label": `Time against ${data.unit}: ${data.points.map((p) => p.title).join("; ")}`,
  });
  const inside = element(element(svg, "defs", {}), "clipPath", { id: `inside-${(numDrawn += 1)}` });
  const clip = `url(#${inside.id})`;
  const frame = { x: left, y: top, width: right - left, height: bottom - top };
  element(inside, "rect", frame);
  const shade = (area) => element(svg, "rect", { ...area, class: "beyond", "clip-path": clip });
  if (data.most_time !== null) shade({ ...frame, height: Math.max(0, y(data.most_time) - top) });
  if (data.most_spent !== null) {
    const from = Math.max(left, x(data.most_spent));
    shade({ ...frame, x: from, width: Math.max(0, right - from) });
  }
  data.y.tickvals.forEach((tick, at) => {
    element(svg, "line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" });
    element(svg, "text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, data.y.ticktext[at]);
  });
  data.x.tickvals.forEach((tick, at) => {
    element(svg, "line", { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4, class: "grid" });
    element(svg, "text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, data.x.ticktext[at]);
  });
  element(svg, "text", { x: (left + right) / 2, y: height - 8, "text-anchor": "middle" }, data.unit);
  element(svg, "rect", { ...frame, class: "frame" });
  if (data.badge) element(svg, "text", { x: right - 6, y: top + 16, "text-anchor": "end", class: "emulated" }, data.badge);

  const front = data.points.filter((point) => point.is_front && point.look !== "believed");
  front.sort((one, other) => one.x - other.x);
  const line = front.map((point) => `${x(point.x)},${y(point.y)}`).join(" ");
  element(svg, "polyline", { points: line, class: "front", "clip-path": clip });
  const taken = [];
  const first = (point) => (point.is_chosen ? 0 : point.look === "measured" ? 1 : 2);
  for (const point of [...data.points].sort((one, other) => first(one) - first(other))) {
    const [px, py] = [x(point.x), y(point.y)];
    if (px < left || px > right || py < top || py > bottom) continue;
    const group = element(svg, "g", { class: `point ${point.look}${point.is_chosen ? " chosen" : ""}` });
    element(group, "title", {}, point.title);
    element(group, "line", { x1: px, x2: px, y1: y(point.lo), y2: y(point.hi), "clip-path": clip });
    if (point.is_chosen) element(group, "circle", { cx: px, cy: py, r: 11, class: "ring" });
    element(group, "circle", { cx: px, cy: py, r: 5 });
    const wide = 8 * point.name.length;
    const at = px + 12 + wide > right ? px - 12 - wide : px + 12;
    const covers = ([ox, oy, ow]) => Math.abs(oy - py) < 13 && at < ox + ow && ox < at + wide;
    if (taken.some(covers)) continue;
    taken.push([at, py, wide]);
    element(group, "text", { x: at, y: py - 4 }, point.name);
  }
  return svg;
}
// Draws the picture of an answer; returns what draws it with another choice and limits.
function showPicture(answer) {
  const box = answer.querySelector(".picture div");
  if (!box) return () => {};
  const asked = JSON.parse(answer.querySelector('script[data-for="picture"]').textContent);
  let data = asked;
  const show = () => box.replaceChildren(drawPicture(data, box.clientWidth || 520));
  show();
  // in the next frame: what is drawn may change the size that is observed
  new ResizeObserver(() => requestAnimationFrame(show)).observe(box);
  return (row, deadline, hours, price, paid) => {
    const isMoney = asked.resource === "money";
    const perHour = isMoney ? price : 1 / asked.scale;
    const unit = isMoney && paid !== price ? `${asked.unit}, at the answer's price` : asked.unit;
    const [time, lo, hi] = row.time_s, name = row.size.toLocaleString("en");
    const chosen = {
      is_front: false, ...asked.points.find((point) => point.name === name), name,
      x: time * row.hours_per_s * perHour, y: time, lo, hi, look: asked.looks[row.basis],
      is_chosen: true, title: `${row.use}: ${row.takes}`,
    };
    const others = asked.points.filter((point) => point.name !== name);
    const most_spent = hours === Infinity ? null : hours * perHour;
    const points = [...others.map((point) => ({ ...point, is_chosen: false })), chosen];
    data = { ...asked, unit, most_time: deadline, most_spent, points };
    show();
  };
}
