// Two kinds of charts, curves and stacked bars, drawn as SVG at the size of their place so that type stays readable.
//
// chart(spec, {height, note, legend}): a spec is what chart/mod.rs made: {name, title, note, kind, x, unit, log, series}, and
// series are {name, method, color, dash, thin, x, y, low, high}. Pointing anywhere tells all values at the nearest x; a click on a name
// hides its curve. A series with a `method` is hidden in all charts at once, see `methods`.

const DASHES = ['', '6 3', '2 3', '8 3 2 3', '1 4'];
// Methods whose curves are hidden, over how many points curves are smoothed, and how to draw every chart again.
const HIDDEN = new Set();
let SMOOTHED = 1;
const REDRAW = [];
const redraw = () => REDRAW.forEach(draw => draw());

// Seven colors, and after them the same ones half as strong.
const color = index => index === 'idle' ? 'var(--idle)' : index === 'bad' ? 'var(--bad)'
  : index % 14 < 7 ? `var(--c${index % 7})` : `color-mix(in oklab, var(--c${index % 7}) 50%, var(--paper))`;
const pattern = index => DASHES[index % DASHES.length] || null;

const opened = series => series.map(one => ({...one, points: DATA.xs[one.x].map((x, place) =>
  ({x, y: one.y[place], low: one.low?.[place], high: one.high?.[place]})).sort((a, b) => a.x - b.x)}));

// The mean of each point and those before it, where a curve is measured at every step.
const isSmooth = (spec, one) => SMOOTHED > 1 && one.points.length > 2 && (one.thin || !spec.name.startsWith('success') || spec.name === 'success-in-training');
function smooth(points) {
  let total = 0;
  return points.map((point, place) => {
    total += point.y - (place >= SMOOTHED ? points[place - SMOOTHED].y : 0);
    return {x: point.x, y: total / Math.min(place + 1, SMOOTHED)};
  });
}

function curve(one, scale, dots, faint) {
  const list = one.points;
  const path = list.map((point, place) => `${place ? 'L' : 'M'}${scale.x(point.x).toFixed(1)} ${scale.y(point.y).toFixed(1)}`).join('');
  const banded = list.filter(point => Number.isFinite(point.low) && Number.isFinite(point.high));
  const edge = (key, from) => from.map(point => `${scale.x(point.x).toFixed(1)} ${scale.y(point[key]).toFixed(1)}`);
  return [
    banded.length > 1 && !one.thin && !faint && s('path', {
      d: `M${edge('high', banded).join('L')}L${edge('low', [...banded].reverse()).join('L')}Z`, fill: color(one.color), opacity: 0.14,
    }),
    s('path', {d: path, fill: 'none', stroke: color(one.color), 'stroke-width': one.thin || faint ? 1.3 : 2, 'stroke-dasharray': faint ? null : pattern(one.dash),
      'stroke-linejoin': 'round', 'stroke-linecap': 'round', opacity: faint ? 0.25 : one.thin ? 0.85 : 1}),
    (list.length === 1 || dots && !one.thin && !faint) && list.map(point =>
      s('circle', {cx: scale.x(point.x), cy: scale.y(point.y), r: 2.7, fill: color(one.color), stroke: 'var(--paper)', 'stroke-width': 1})),
  ];
}

function bars(series, scale, spec) {
  const room = Math.abs(scale.x(spec.step) - scale.x(0));
  const width = Math.max(1, Math.min(28, room - (room > 5 ? 1.5 : 0)));
  const tops = new Map();
  // One path a series: a thousand steps are a thousand pieces of it, not of the page.
  return series.map(one => s('path', {fill: color(one.color), d: one.points.map(({x, y}) => {
    const from = tops.get(x) || 0;
    tops.set(x, from + y);
    const [top, bottom] = [scale.y(from + y), scale.y(from)];
    return y > 0 ? `M${(scale.x(x) - width / 2).toFixed(1)} ${top.toFixed(1)}h${width.toFixed(1)}v${Math.max(0.5, bottom - top).toFixed(1)}h-${width.toFixed(1)}z` : '';
  }).join('')}));
}

// What a chart shows, without its place on the page.
function picture(spec, series, scale) {
  const dots = series.every(one => one.thin || one.points.length <= 30);
  const drawn = series.map(one => isSmooth(spec, one) ? [curve(one, scale, false, true), curve({...one, points: smooth(one.points)}, scale, false)] : curve(one, scale, dots));
  return [axes(spec, scale), spec.kind === 'bars' ? bars(series, scale, spec) : drawn];
}

function key(one, kind) {
  return s('svg', {viewBox: '0 0 20 10', 'aria-hidden': 'true'}, kind === 'bars'
    ? s('rect', {x: 5, y: 0, width: 10, height: 10, rx: 2, fill: color(one.color)})
    : s('line', {x1: 1, x2: 19, y1: 5, y2: 5, stroke: color(one.color), 'stroke-width': one.thin ? 1.5 : 2.5, 'stroke-dasharray': pattern(one.dash)}));
}

const WRITTEN = {number: value => short(value), count: value => count(value), share: value => percent(value), seconds: value => seconds(value)};

function chart(spec, {height = 214, legend = true} = {}) {
  const series = opened(spec.series), hidden = new Set();
  let log = spec.log;
  const plot = h('div', {class: 'plot', style: `height:${height}px`});
  const tip = h('div', {class: 'tip'});
  const xs = [...new Set(series.flatMap(one => one.points.map(point => point.x)))].sort((a, b) => a - b);
  spec.step = least(xs.slice(1).map((x, place) => x - xs[place]));
  if (!Number.isFinite(spec.step)) spec.step = 1;
  const shown = () => series.filter(one => !hidden.has(one.name) && !HIDDEN.has(one.method));
  const draw = () => {
    const width = plot.clientWidth, visible = shown();
    if (width === 0) return;
    plot.replaceChildren(tip);
    const scale = scales(spec, visible.length ? visible : series, width, height, log);
    const mark = s('g', {});
    plot.prepend(s('svg', {
      height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `${spec.title}: ${series.map(one => one.name).join(', ')}`,
      onpointermove: event => point(event, visible, scale, mark, width), onpointerleave: () => { tip.style.display = 'none'; mark.replaceChildren(); },
    }, picture(spec, visible, scale), mark));
  };
  const point = (event, visible, scale, mark, width) => {
    const at = event.offsetX * (width / event.currentTarget.clientWidth);
    const xs = [...new Set(visible.flatMap(one => one.points.map(p => p.x)))];
    if (!xs.length) return;
    const x = xs.reduce((best, one) => Math.abs(scale.x(one) - at) < Math.abs(scale.x(best) - at) ? one : best);
    const near = (best, p) => Math.abs(p.x - x) < Math.abs(best.x - x) ? p : best;
    const rows = visible.map(one => [one, one.points.reduce(near)]).filter(([, p]) => Math.abs(scale.x(p.x) - scale.x(x)) < (spec.x === 'step' ? 0.5 : 12));
    mark.replaceChildren(
      s('line', {x1: scale.x(x), x2: scale.x(x), y1: scale.top, y2: scale.bottom, stroke: 'var(--faint)', 'stroke-dasharray': '2 3'}),
      ...(spec.kind === 'bars' ? [] : rows.map(([one, p]) => s('circle', {cx: scale.x(p.x), cy: scale.y(p.y), r: 3.5, fill: color(one.color)}))));
    tip.replaceChildren(h('b', {}, spec.x === 'tokens' ? `${short(x)} tokens` : `step ${count(x)}`),
      h('table', {}, rows.map(([one, p]) => h('tr', {}, h('td', {}, h('i', {style: `background:${color(one.color)}`}), one.name),
        h('td', {}, WRITTEN[spec.unit](p.y), Number.isFinite(p.low) && !one.thin ? ` (${WRITTEN[spec.unit](p.low)} to ${WRITTEN[spec.unit](p.high)})` : '')))));
    tip.style.display = 'block';
    const left = scale.x(x) + 14;
    tip.style.left = `${left + tip.offsetWidth > width ? Math.max(0, scale.x(x) - 14 - tip.offsetWidth) : left}px`;
  };
  new ResizeObserver(draw).observe(plot);
  REDRAW.push(draw);
  const names = series.length > 1 && legend ? h('div', {class: 'legend'}, series.map(one => h('button', {
    'aria-pressed': 'true', title: 'show or hide', onclick: event => {
      if (!hidden.delete(one.name)) hidden.add(one.name);
      event.currentTarget.setAttribute('aria-pressed', String(!hidden.has(one.name)));
      draw();
    },
  }, key(one, spec.kind), one.name))) : null;
  const scaling = canLog(spec, series) && h('button', {'aria-pressed': String(log), title: 'logarithmic or linear axis', onclick: event => {
    log = !log;
    event.currentTarget.setAttribute('aria-pressed', String(log));
    draw();
  }}, 'log');
  return h('figure', {'data-chart': spec.name}, h('figcaption', {}, h('h3', {}, spec.title), spec.note && h('p', {class: 'note'}, spec.note), names),
    h('div', {}, plot, h('div', {class: 'tools'}, scaling,
      h('code', {title: `report ${RUNS.length > 1 ? 'RUN RUN …' : RUNS[0].name} --figure ${spec.name}.pdf writes this chart for a paper`}, spec.name),
      download(`${spec.name}.svg`, 'SVG', () => standalone(spec, shown(), log)), download(`${spec.name}.csv`, 'CSV', () => table(spec, shown())))));
}

// The legend that all charts of several runs share: a color for each method, a dash for each role or policy.
function methods() {
  return h('div', {class: 'legend methods'},
    METHODS.map((method, index) => h('button', {
      'aria-pressed': 'true', title: 'show or hide in all charts', onclick: event => {
        if (!HIDDEN.delete(index)) HIDDEN.add(index);
        event.currentTarget.setAttribute('aria-pressed', String(!HIDDEN.has(index)));
        redraw();
      },
    }, key({color: index, dash: 0}), method.name, method.runs.length > 1 && h('span', {class: 'faint'}, ` × ${method.runs.length}`))),
    DATA.dashes.length > 1 && h('span', {class: 'dashes'}, DATA.dashes.map((name, place) => h('span', {}, s('svg', {viewBox: '0 0 20 10', 'aria-hidden': 'true'},
      s('line', {x1: 1, x2: 19, y1: 5, y2: 5, stroke: 'var(--soft)', 'stroke-width': 2.5, 'stroke-dasharray': pattern(place)})), name))));
}

// Over how many steps curves are averaged, of those that are measured at every step.
function smoothing() {
  return h('label', {class: 'smoothing'}, 'Smoothing ', h('select', {onchange: event => { SMOOTHED = +event.target.value; redraw(); }},
    [[1, 'none'], [3, '3 steps'], [5, '5 steps'], [10, '10 steps'], [25, '25 steps']].map(([value, name]) => h('option', {value}, name))));
}
