// Axes: round ticks, labels that tell each tick from the next, and where a value lies.

// By what values are divided before they are written, and what is written behind them.
function scaleOf(most, unit) {
  if (unit === 'share') return [0.01, ' %'];
  if (unit === 'seconds') return most >= 7200 ? [3600, ' h'] : most >= 120 ? [60, ' min'] : [1, ' s'];
  if (unit === 'step') return [1, ''];
  return most >= 1e9 ? [1e9, ' G'] : most >= 1e6 ? [1e6, ' M'] : most >= 1e4 ? [1e3, ' k'] : [1, ''];
}

// The round number that divides a length into about `wanted` parts; of whole numbers a whole one.
function tickUnit(length, wanted, whole) {
  const raw = Math.max(length / wanted, whole ? 1 : 1e-300), power = 10 ** Math.floor(Math.log10(raw));
  return (whole && power === 1 ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map(one => one * power).find(one => one >= raw * 0.999) ?? raw;
}

// As many digits after the point as multiples of a unit need.
function digitsOf(unit) {
  for (let digits = 0; digits < 12; digits++) {
    const shifted = unit * 10 ** digits;
    if (shifted >= 0.999 && Math.abs(shifted - Math.round(shifted)) < 1e-6 * shifted) return digits;
  }
  return 12;
}

// An axis from low to high, widened to ticks if asked: {place(value), ticks: [{value, label}]}.
function linearAxis(low, high, wanted, unit, widen) {
  const [scale, suffix] = scaleOf(high, unit), step = tickUnit((high - low) / scale, wanted, scale === 1 && (unit === 'step' || unit === 'count')), digits = digitsOf(step);
  if (widen) [low, high] = [Math.floor(low / scale / step + 1e-9) * step * scale, Math.ceil(high / scale / step - 1e-9) * step * scale];
  const out = [];
  for (let place = Math.ceil(low / scale / step - 1e-9); place * step * scale <= high + step * scale * 1e-9; place++) {
    const value = +(place * step).toPrecision(12);
    out.push({value: value * scale, label: value === 0 && suffix !== ' %' ? '0' : value.toFixed(digits).replace('-', '−') + suffix});
  }
  return {ticks: out, place: value => (value - low) / (high - low)};
}

// Whole decades; both ends above 0.
function logAxis(low, high) {
  const from = Math.floor(Math.log10(low) + 1e-9), to = Math.max(Math.ceil(Math.log10(high) - 1e-9), from + 1);
  const every = Math.max(1, Math.floor((to - from + 1) / 6)), out = [];
  for (let power = from; power <= to; power += every) out.push({value: 10 ** power, label: `10${raised(power)}`});
  return {ticks: out, place: value => (Math.log10(Math.max(value, 10 ** from)) - from) / (to - from)};
}

const RULER = document.createElement('canvas').getContext('2d');
function widthOf(text, font = '11.5px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif') {
  RULER.font = font;
  return RULER.measureText(text).width;
}

// A logarithmic axis has no place for what is below 0, and none for nothing but 0.
const canLog = (spec, series) => {
  const ys = series.flatMap(one => one.points.map(point => point.y));
  return spec.kind === 'curves' && ys.every(y => y >= 0) && ys.some(y => y > 0);
};

function yAxis(spec, series, log) {
  const all = series.flatMap(one => one.points);
  if (spec.kind === 'bars') {
    const heights = new Map();
    for (const {x, y} of all) heights.set(x, (heights.get(x) || 0) + y);
    const top = most([...heights.values()], 0);
    return linearAxis(0, top > 0 ? top : 1, 4, spec.unit, true);
  }
  const ys = all.flatMap(point => [point.y, point.low, point.high]).filter(y => Number.isFinite(y) && (!log || y > 0));
  let [low, high] = [least(ys), most(ys)];
  if (log && Number.isFinite(low)) return logAxis(low, high);
  if (low > 0 && low < 0.6 * high) low = 0;
  if (low === high) { const room = low === 0 ? 1 : Math.abs(low) * 0.1; if (low !== 0) low -= room; high += room; }
  return linearAxis(low, high, 4, spec.unit, true);
}

function xAxis(spec, series, width) {
  const xs = series.flatMap(one => one.points.map(point => point.x));
  let [low, high] = [least(xs), most(xs)];
  if (spec.kind === 'bars') { low -= 0.5 * spec.step; high += 0.5 * spec.step; }
  if (low === high) { low -= 0.5; high += 0.5; }
  return linearAxis(low, high, Math.max(3, Math.floor(width / 85)), spec.x === 'step' ? 'step' : 'number', false);
}

// Margins that hold the labels, and from data to pixels.
function scales(spec, series, width, height, log) {
  const y = yAxis(spec, series, log), x = xAxis(spec, series, width);
  const left = Math.ceil(Math.max(...y.ticks.map(tick => widthOf(tick.label)), 16) + 12);
  const right = Math.ceil(Math.max(12, ...x.ticks.slice(-1).map(tick => widthOf(tick.label) / 2 + 4)));
  const [top, bottom] = [10, height - 38];
  return {
    left, right: width - right, top, bottom, xTicks: x.ticks, yTicks: y.ticks,
    x: value => left + x.place(value) * (width - left - right),
    y: value => top + (1 - y.place(value)) * (bottom - top),
  };
}

function axes(spec, scale) {
  return [
    scale.yTicks.map(tick => [
      s('line', {class: 'gridline', x1: scale.left, x2: scale.right, y1: scale.y(tick.value), y2: scale.y(tick.value)}),
      s('text', {x: scale.left - 7, y: scale.y(tick.value) + 4, 'text-anchor': 'end'}, tick.label),
    ]),
    s('line', {class: 'axis', x1: scale.left, x2: scale.right, y1: scale.bottom, y2: scale.bottom}),
    scale.xTicks.map(tick => s('text', {x: scale.x(tick.value), y: scale.bottom + 18, 'text-anchor': 'middle'}, tick.label)),
    s('text', {x: (scale.left + scale.right) / 2, y: scale.bottom + 34, 'text-anchor': 'middle'}, spec.x === 'tokens' ? 'tokens generated in training' : spec.x),
  ];
}
