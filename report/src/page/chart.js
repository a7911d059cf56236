// Two kinds of charts, curves and stacked bars, drawn as SVG at the size of their place so that type stays readable.
//
// chart({title, note, series, kind, format, domain, log, xName}): series are {name, color, dash, points}, points are
// {x, y, low, high}. Pointing anywhere tells all values at the nearest x; a click on a name hides its curve. A series
// with a `method` is hidden in all charts at once, see `methods`.

const DASHES = ['', '6 3', '2 3', '8 3 2 3', '1 4'];
const MARGIN = {left: 48, right: 14, top: 8, bottom: 24};
const tenTo = y => `10${raised(Math.round(Math.log10(y)))}`;
// Methods whose curves are hidden, and how to draw every chart again.
const HIDDEN = new Set();
const REDRAW = [];

// Round values that divide an interval, about `wanted` of them.
function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map(one => one * power).find(one => one >= raw * 0.999);
  const out = [];
  for (let place = Math.ceil(low / unit - 1e-9); place * unit <= high + unit * 1e-9; place++) {
    out.push(+(place * unit).toPrecision(12));
  }
  return out;
}

function decades(low, high) {
  const out = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) out.push(10 ** power);
  const every = Math.ceil(out.length / 6);
  return out.filter((_, place) => place % every === 0);
}

// From data to pixels, and the ticks of both axes.
function scales(spec, series, width, height) {
  const all = series.flatMap(one => one.points);
  const xs = all.map(point => point.x);
  const bars = spec.kind === 'bars';
  let [x0, x1] = [least(xs), most(xs)];
  if (bars) { x0 -= 0.5 * spec.step; x1 += 0.5 * spec.step; }
  if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
  let y0, y1;
  if (bars) {
    const heights = new Map();
    for (const {x, y} of all) heights.set(x, (heights.get(x) || 0) + y);
    [y0, y1] = [0, most([...heights.values()], 1e-12)];
  } else {
    const ys = all.flatMap(point => [point.y, point.low, point.high]).filter(y => Number.isFinite(y) && (!spec.log || y > 0));
    [y0, y1] = [least(ys), most(ys)];
    if (!spec.log && y0 > 0 && y0 < 0.6 * y1) y0 = 0;
  }
  if (spec.domain) [y0, y1] = [Math.min(y0, spec.domain[0] ?? y0), Math.max(y1, spec.domain[1] ?? y1)];
  if (y0 === y1) { const room = Math.abs(y0) * 0.1 || 1; y0 -= spec.log || y0 === 0 ? 0 : room; y1 += room; }
  const inner = height - MARGIN.top - MARGIN.bottom;
  let yTicks, place;
  if (spec.log) {
    yTicks = decades(y0, y1);
    const [a, b] = [Math.log10(Math.min(y0, yTicks[0])), Math.log10(Math.max(y1, last(yTicks)))];
    place = y => (Math.log10(Math.max(y, 10 ** a)) - a) / (b - a);
  } else {
    const fitted = ticks(y0, y1, 4);
    const unit = fitted.length > 1 ? fitted[1] - fitted[0] : y1 - y0;
    [y0, y1] = [Math.floor(y0 / unit + 1e-9) * unit, Math.ceil(y1 / unit - 1e-9) * unit];
    yTicks = ticks(y0, y1, 4);
    place = y => (y - y0) / (y1 - y0);
  }
  return {
    x: x => MARGIN.left + (x - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right),
    y: y => MARGIN.top + (1 - place(y)) * inner,
    xTicks: ticks(x0, x1, Math.max(3, Math.floor(width / 75))).filter(x => spec.xName || Number.isInteger(x)),
    yTicks, bottom: MARGIN.top + inner, zero: y0,
  };
}

function axes(spec, scale, width) {
  const format = spec.format || short;
  return [
    scale.yTicks.map(y => [
      s('line', {class: 'gridline', x1: MARGIN.left, x2: width - MARGIN.right, y1: scale.y(y), y2: scale.y(y)}),
      s('text', {x: MARGIN.left - 7, y: scale.y(y) + 4, 'text-anchor': 'end'}, spec.log ? tenTo(y) : spec.tick ? spec.tick(y) : format(y)),
    ]),
    s('line', {class: 'axis', x1: MARGIN.left, x2: width - MARGIN.right, y1: scale.bottom, y2: scale.bottom}),
    scale.xTicks.map(x => s('text', {x: scale.x(x), y: scale.bottom + 16, 'text-anchor': 'middle'}, short(x))),
    s('text', {x: MARGIN.left - 7, y: scale.bottom + 16, 'text-anchor': 'end'}, spec.xName || 'step'),
  ];
}

// A curve breaks where a step has no value.
function curve(one, scale, dots) {
  const list = [...one.points].sort((a, b) => a.x - b.x);
  const path = list.map((point, place) => `${place ? 'L' : 'M'}${scale.x(point.x).toFixed(1)} ${scale.y(point.y).toFixed(1)}`).join('');
  const banded = list.filter(point => Number.isFinite(point.low) && Number.isFinite(point.high));
  const edge = (key, from) => from.map(point => `${scale.x(point.x).toFixed(1)} ${scale.y(point[key]).toFixed(1)}`);
  return [
    banded.length > 1 && one.band !== false && s('path', {
      d: `M${edge('high', banded).join('L')}L${edge('low', [...banded].reverse()).join('L')}Z`, fill: one.color, opacity: 0.14,
    }),
    s('path', {d: path, fill: 'none', stroke: one.color, 'stroke-width': one.thin ? 1.3 : 2, 'stroke-dasharray': one.dash || null,
      'stroke-linejoin': 'round', 'stroke-linecap': 'round', opacity: one.thin ? 0.85 : 1}),
    dots && !one.thin && list.map(point =>
      s('circle', {cx: scale.x(point.x), cy: scale.y(point.y), r: 2.7, fill: one.color, stroke: 'var(--paper)', 'stroke-width': 1})),
  ];
}

function bars(series, scale, spec) {
  const width = Math.max(1, Math.min(28, Math.abs(scale.x(spec.step) - scale.x(0)) - (Math.abs(scale.x(spec.step) - scale.x(0)) > 5 ? 1.5 : 0)));
  const tops = new Map();
  // One path a series: a thousand steps are a thousand pieces of it, not of the page.
  return series.map(one => s('path', {fill: one.color, d: one.points.map(({x, y}) => {
    const from = tops.get(x) || 0;
    tops.set(x, from + y);
    const [top, bottom] = [scale.y(from + y), scale.y(from)];
    return y > 0 ? `M${(scale.x(x) - width / 2).toFixed(1)} ${top.toFixed(1)}h${width.toFixed(1)}v${Math.max(0.5, bottom - top).toFixed(1)}h-${width.toFixed(1)}z` : '';
  }).join('')}));
}

function key(one, kind) {
  return s('svg', {viewBox: '0 0 20 10'}, kind === 'bars'
    ? s('rect', {x: 5, y: 0, width: 10, height: 10, rx: 2, fill: one.color})
    : s('line', {x1: 1, x2: 19, y1: 5, y2: 5, stroke: one.color, 'stroke-width': one.thin ? 1.5 : 2.5, 'stroke-dasharray': one.dash || null}));
}

function chart(spec) {
  const series = spec.series.filter(one => one.points.length > 0);
  if (series.length === 0) return null;
  const hidden = new Set();
  const plot = h('div', {class: 'plot', style: `height:${spec.height || 200}px`});
  const tip = h('div', {class: 'tip'});
  if (spec.kind === 'bars') {
    const xs = distinct(series.flatMap(one => one.points), 'x').sort((a, b) => a - b);
    spec.step = least(xs.slice(1).map((x, place) => x - xs[place]));
    if (!Number.isFinite(spec.step)) spec.step = 1;
  }
  const draw = () => {
    const width = plot.clientWidth, height = spec.height || 200;
    const visible = series.filter(one => !hidden.has(one.name) && !HIDDEN.has(one.method));
    const dots = series.every(one => one.thin || one.points.length <= 30);
    if (width === 0) return;
    plot.replaceChildren(tip);
    const scale = scales(spec, visible.length ? visible : series, width, height);
    const mark = s('g', {});
    plot.prepend(s('svg', {
      height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${spec.title}: ${series.map(one => one.name).join(', ')}`,
      onpointermove: event => point(event, visible, scale, mark, width), onpointerleave: () => { tip.style.display = 'none'; mark.replaceChildren(); },
    }, axes(spec, scale, width), spec.kind === 'bars' ? bars(visible, scale, spec) : visible.map(one => curve(one, scale, dots)), mark));
  };
  const point = (event, visible, scale, mark, width) => {
    const at = event.offsetX * (width / event.currentTarget.clientWidth);
    const xs = [...new Set(visible.flatMap(one => one.points.map(p => p.x)))];
    if (!xs.length) return;
    const x = xs.reduce((best, one) => Math.abs(scale.x(one) - at) < Math.abs(scale.x(best) - at) ? one : best);
    const format = spec.tell || spec.format || short;
    const near = (best, p) => Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best;
    const rows = visible.map(one => [one, one.points.reduce(near)]).filter(([, p]) => Math.abs(scale.x(p.x) - scale.x(x)) < (spec.xName ? 12 : 0.5));
    mark.replaceChildren(
      s('line', {x1: scale.x(x), x2: scale.x(x), y1: MARGIN.top, y2: scale.bottom, stroke: 'var(--faint)', 'stroke-dasharray': '2 3'}),
      ...(spec.kind === 'bars' ? [] : rows.map(([one, p]) => s('circle', {cx: scale.x(x), cy: scale.y(p.y), r: 4, fill: one.color}))));
    const interval = p => Number.isFinite(p.low) && Number.isFinite(p.high) ? ` (${format(p.low)} to ${format(p.high)})` : '';
    tip.replaceChildren(h('b', {}, spec.xName ? `${short(x)} ${spec.xName}` : `step ${count(x)}`),
      h('table', {}, rows.map(([one, p]) => h('tr', {}, h('td', {}, h('i', {style: `background:${one.color}`}), one.name),
        h('td', {}, format(p.y) + interval(p))))));
    tip.style.display = 'block';
    const left = scale.x(x) + 12;
    tip.style.left = `${left + tip.offsetWidth > width ? Math.max(0, scale.x(x) - 12 - tip.offsetWidth) : left}px`;
  };
  new ResizeObserver(draw).observe(plot);
  REDRAW.push(draw);
  const legend = series.length > 1 && spec.legend !== false ? h('div', {class: 'legend'}, series.map(one => h('button', {
    'aria-pressed': 'true', title: 'show or hide', onclick: event => {
      if (!hidden.delete(one.name)) hidden.add(one.name);
      event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(one.name)));
      draw();
    },
  }, key(one, spec.kind), one.name))) : null;
  return h('figure', {}, h('figcaption', {}, h('h3', {}, spec.title), spec.note && h('p', {class: 'note'}, spec.note), legend), plot);
}

// The legend that all charts of several runs share: a color for each method, a dash for each role or policy.
function methods(dashes) {
  return h('div', {class: 'legend methods'},
    METHODS.map(method => h('button', {
      'aria-pressed': 'true', title: 'show or hide in all charts', onclick: event => {
        if (!HIDDEN.delete(method)) HIDDEN.add(method);
        event.currentTarget.setAttribute('aria-pressed', String(!HIDDEN.has(method)));
        REDRAW.forEach(draw => draw());
      },
    }, key({color: color(method.index)}), method.name, method.runs.length > 1 && h('span', {class: 'faint'}, ` × ${method.runs.length}`))),
    dashes.length > 1 && h('span', {class: 'dashes'}, dashes.map((name, place) => h('span', {}, key({color: 'var(--soft)', dash: DASHES[place % DASHES.length]}), name))));
}
