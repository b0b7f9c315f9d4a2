// Small charts in SVG. Colours and fonts come from the style sheet; nothing here knows what is drawn.

const SVG = "http://www.w3.org/2000/svg";
const EDGE = { left: 54, right: 12, top: 8, bottom: 22 };
const HEIGHT = 168;

/** An SVG element with attributes and children. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** An HTML element: h("p", {class: "aside"}, "text"). Text is never parsed as HTML. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Round values at or above `most` to divide an axis: 1, 2 or 5 times a power of ten. */
export function ticks(most, wanted = 4) {
  if (!(most > 0)) return [0, 1];
  const raw = most / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * power).find((each) => each >= raw * 0.999);
  const found = [];
  for (let index = 0; index * step < most + step * 0.999; index += 1) found.push(+(index * step).toPrecision(12));
  return found;
}

/**
 * Means of so many neighbours that no more than `room` remain. `values` may hold null: of nulls only comes null.
 * The blocks are aligned to `offset`, the number of the first value, so that they do not shimmer as time goes on.
 */
export function thinned(values, room, offset) {
  const size = Math.max(1, Math.ceil(values.length / room));
  if (size === 1) return values;
  const blocks = [];
  let start = 0;
  let end = size - (offset % size);
  while (start < values.length) {
    const block = values.slice(start, end).filter((value) => value !== null);
    blocks.push(block.length ? block.reduce((sum, value) => sum + value, 0) / block.length : null);
    start = end;
    end += size;
  }
  return blocks;
}

/** Path through points; a null breaks it. `stepped` draws what holds until the next point. */
function line(points, stepped = false) {
  let path = "";
  let open = false;
  for (const point of points) {
    if (point === null) {
      open = false;
      continue;
    }
    const [x, y] = point;
    path += open ? (stepped ? `H${x}V${y}` : `L${x} ${y}`) : `M${x} ${y}`;
    open = true;
  }
  return path;
}

function area(upper, lower) {
  const back = [...lower].reverse().map(([x, y]) => `L${x} ${y}`);
  return `${line(upper)}${back.join("")}Z`;
}

const fixed = (number) => Math.round(number * 10) / 10;

/** The frame that every chart has: title, legend with a value for each series, picture. */
function frame(figure, title, series) {
  const values = series.map(() => h("b", {}));
  const when = h("li", { class: "when" });
  const legend = series.map((each, index) => h("li", { class: each.class }, h("span", { class: "key" }), `${each.name} `, values[index]));
  const caption = h("figcaption", {}, h("strong", {}, title), h("ul", { class: "legend" }, when, legend));
  const width = Math.max(240, figure.clientWidth - 2);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": title });
  figure.replaceChildren(caption, picture);
  return { picture, values, when, width, inner: width - EDGE.left - EDGE.right };
}

function grid(picture, width, marks, y, format) {
  for (const mark of marks) {
    const at = fixed(y(mark));
    picture.append(
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }),
      svg("text", { class: "tick", x: EDGE.left - 6, y: at + 3.5, "text-anchor": "end" }, format(mark)),
    );
  }
}

/**
 * Values over time.
 *
 * spec: title; length: seconds shown; ages: [seconds before now, label] along the bottom; offset: number of the first
 * value; series: [{name, class, values, kind}] with kind "stack" (areas on each other), "area", "line" or "step";
 * format: value -> text; least: what the axis shows at least; marks: [{value, name, class}] are drawn across;
 * grain: pixels to a point.
 */
export function timeChart(figure, spec) {
  const { picture, values, when, width, inner } = frame(figure, spec.title, spec.series);
  const room = Math.max(30, Math.floor(((inner / spec.grain) * spec.series[0].values.length) / spec.length));
  const drawn = spec.series.map((each) => ({ ...each, values: thinned(each.values, room, spec.offset) }));
  const count = drawn[0].values.length;
  const seen = drawn[0].values.length ? spec.series[0].values.length : 0;
  const heights = stacked(drawn);
  const top = Math.max(spec.least, ...spec.marks.map((mark) => mark.value), ...heights.flat().filter((value) => value !== null));
  const marks = ticks(top, 3);
  const ceiling = marks[marks.length - 1];
  const bottom = HEIGHT - EDGE.bottom;
  const y = (value) => bottom - (value / ceiling) * (bottom - EDGE.top);
  const age = (index) => (count > 1 ? seen * (1 - index / (count - 1)) : 0);
  const x = (seconds) => EDGE.left + inner * (1 - seconds / spec.length);
  grid(picture, width, marks, y, spec.format);
  for (const [seconds, label] of spec.ages) {
    const anchor = seconds === 0 ? "end" : seconds === spec.length ? "start" : "middle";
    picture.append(svg("text", { class: "tick", x: fixed(x(seconds)), y: HEIGHT - 6, "text-anchor": anchor }, label));
  }
  const at = (values) => values.map((value, index) => (value === null ? null : [fixed(x(age(index))), fixed(y(value))]));
  let below = drawn[0].values.map((_, index) => [fixed(x(age(index))), bottom]);
  const layers = drawn.map((each, index) => {
    const points = at(heights[index]);
    const layer = [];
    if (each.kind === "stack" || each.kind === "area") {
      const solid = points.map((point, place) => point ?? below[place]);
      if (count > 1) layer.push(svg("path", { class: `fill ${each.class}`, d: area(solid, below) }));
      if (each.kind === "stack") below = solid;
    }
    const nothing = each.kind === "stack" && each.values.every((value) => !value);
    if (!nothing) layer.push(svg("path", { class: `stroke ${each.class}`, d: line(points, each.kind === "step") }));
    return each.kind === "stack" ? layer : [...layer, ...lonely(points, each.class)];
  });
  if (drawn[0].kind === "stack") layers.reverse(); // the edge of the lowest is drawn last, or thin layers would hide it
  picture.append(...layers.flat());
  for (const mark of spec.marks) picture.append(...across(width, y(mark.value), mark));
  hover(figure, picture, { x, age, count, drawn, format: spec.format, width, values, when });
}

/** Heights of the series' upper edges: a "stack" stands on those before it. */
function stacked(series) {
  let below = null;
  return series.map((each) => {
    if (each.kind !== "stack") return each.values;
    const base = below;
    below = each.values.map((value, index) => (value ?? 0) + (base ? base[index] : 0));
    return below;
  });
}

/** A point between two gaps would be invisible as a line. */
function lonely(points, name) {
  return points
    .filter((point, index) => point && !points[index - 1] && !points[index + 1])
    .map(([x, y]) => svg("circle", { class: `dot ${name}`, cx: x, cy: y, r: 1.8 }));
}

function across(width, y, mark) {
  const at = fixed(y);
  const below = at < EDGE.top + 12;
  return [
    svg("line", { class: `mark ${mark.class ?? ""}`, x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }),
    svg("text", { class: `mark-name ${mark.class ?? ""}`, x: EDGE.left + 4, y: below ? at + 12 : at - 4 }, mark.name),
  ];
}

/** Under the pointer: a line, and in the legend the values there, else the last ones. It stays while time goes on. */
function hover(figure, picture, { x, age, count, drawn, format, width, values, when }) {
  const cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  picture.append(cursor);
  const show = (place) => {
    figure.pointedAt = place;
    let nearest = count - 1;
    for (let index = 0; place !== null && index < count; index += 1) {
      if (Math.abs(x(age(index)) - place) < Math.abs(x(age(nearest)) - place)) nearest = index;
    }
    const at = fixed(x(age(nearest)));
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", place === null ? "hidden" : "visible");
    when.textContent = place === null ? "" : ago(age(nearest));
    drawn.forEach((each, index) => {
      const value = each.values[nearest];
      values[index].textContent = value === null || value === undefined ? "–" : format(value);
    });
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * width);
  });
  picture.addEventListener("pointerleave", () => show(null));
  show(figure.pointedAt ?? null);
}

/** Seconds as in "3 min ago". */
export function ago(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

/** Two series of a backend, without axes: running under its limit. */
export function spark(limits, running, offset) {
  const [width, height] = [160, 34];
  const limit = thinned(limits, 80, offset);
  const used = thinned(running, 80, offset);
  const top = Math.max(1, ...limit, ...used);
  const point = (value, index, all) => [
    fixed(all.length > 1 ? (index / (all.length - 1)) * width : width),
    fixed(height - 2 - (value / top) * (height - 5)),
  ];
  const points = used.map(point);
  const picture = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (points.length > 1) {
    picture.append(svg("path", { class: "fill running", d: area(points, points.map(([x]) => [x, height])) }));
    picture.append(svg("path", { class: "stroke limit", d: line(limit.map(point), true) }));
  }
  return picture;
}

/**
 * Values by requests in flight: seen levels only; a gap in what was seen is a gap in the line.
 *
 * spec: title, series [{name, class, values: [[level, value | null, isUnbroken]]}], marks: [{level, name, class}],
 * format, most: the highest level shown.
 */
export function levelChart(figure, spec) {
  const { picture, width, inner } = frame(figure, spec.title, spec.series);
  const all = spec.series.flatMap((each) => each.values.map(([, value]) => value).filter((value) => value !== null));
  const marks = ticks(Math.max(1e-9, ...all), 3);
  const ceiling = marks[marks.length - 1];
  const bottom = HEIGHT - EDGE.bottom;
  const y = (value) => bottom - (value / ceiling) * (bottom - EDGE.top - 12);
  const x = (level) => EDGE.left + inner * (level / spec.most);
  grid(picture, width, marks, y, spec.format);
  for (const mark of ticks(spec.most, 6).filter((each) => each <= spec.most)) {
    picture.append(svg("text", { class: "tick", x: fixed(x(mark)), y: HEIGHT - 6, "text-anchor": "middle" }, String(mark)));
  }
  for (const each of spec.series) {
    const points = [];
    for (const [level, value, unbroken] of each.values) {
      if (!unbroken) points.push(null);
      points.push(value === null ? null : [fixed(x(level)), fixed(y(value))]);
    }
    picture.append(svg("path", { class: `stroke ${each.class}`, d: line(points) }));
    for (const point of points) {
      if (point) picture.append(svg("circle", { class: `dot ${each.class}`, cx: point[0], cy: point[1], r: 2.2 }));
    }
  }
  spec.marks.forEach((mark, index) => {
    const at = fixed(x(mark.level));
    const end = at > width - 90;
    picture.append(
      svg("line", { class: `mark ${mark.class}`, x1: at, x2: at, y1: EDGE.top, y2: bottom }),
      svg("text", { class: `mark-name ${mark.class}`, x: at + (end ? -4 : 4), y: EDGE.top + 8 + 12 * index, "text-anchor": end ? "end" : "start" }, mark.name),
    );
  });
}
