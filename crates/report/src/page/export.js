// A chart as a file: an SVG that stands by itself, in light colors whatever the page has, and its data as CSV.

const LIGHT = {c0: '#0068a8', c1: '#c8500a', c2: '#00805c', c3: '#a1467f', c4: '#9a6a00', c5: '#3f6fd1', c6: '#6b7480', idle: '#c9ced5', bad: '#c8500a', paper: '#ffffff', faint: '#8a929c'};
const halved = hex => '#' + [1, 3, 5].map(at => Math.round((255 + parseInt(hex.slice(at, at + 2), 16)) / 2).toString(16).padStart(2, '0')).join('');

// A link that makes its file when it is followed.
function download(name, text, make) {
  const link = h('a', {href: '#', download: name, title: `download ${name}`, onclick: () => {
    const type = name.endsWith('.svg') ? 'image/svg+xml' : 'text/csv';
    link.href = URL.createObjectURL(new Blob([make()], {type}));
    setTimeout(() => { URL.revokeObjectURL(link.href); link.href = '#'; }, 1000);
  }}, text);
  return link;
}

function standalone(spec, series, log) {
  const [width, plot] = [560, 300], font = '11.5px Helvetica, Arial, sans-serif';
  const scale = scales(spec, series, width, plot, log), names = [];
  let [x, y] = [scale.left, plot + 14];
  for (const one of series.length > 1 ? series : []) {
    const wide = 30 + widthOf(one.name, font);
    if (x > scale.left && x + wide > width) [x, y] = [scale.left, y + 18];
    names.push(s('g', {transform: `translate(${x} ${y})`}, spec.kind === 'bars'
      ? s('rect', {x: 5, y: -9, width: 10, height: 10, fill: color(one.color)})
      : s('line', {x1: 0, x2: 18, y1: -4, y2: -4, stroke: color(one.color), 'stroke-width': 2, 'stroke-dasharray': pattern(one.dash)}),
    s('text', {x: 23, y: 0}, one.name)));
    x += wide + 14;
  }
  const height = names.length ? y + 10 : plot;
  const svg = s('svg', {xmlns: 'http://www.w3.org/2000/svg', width, height, viewBox: `0 0 ${width} ${height}`},
    s('title', {}, spec.title), s('style', {}, `text{font:${font};fill:#333}.gridline{stroke:#e4e4e4}.axis{stroke:#5a5a5a}`),
    s('rect', {width: '100%', height: '100%', fill: '#ffffff'}), picture(spec, series, scale), names);
  return svg.outerHTML.replace(/color-mix\(in oklab, var\(--(\w+)\) 50%, var\(--paper\)\)/g, (_, name) => halved(LIGHT[name]))
    .replace(/var\(--(\w+)\)/g, (_, name) => LIGHT[name]);
}

// A name that a spreadsheet would run as a formula begins with an apostrophe.
const cell = text => { const safe = /^[=+\-@]/.test(text) ? `'${text}` : text; return /[",\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe; };
function table(spec, series) {
  const rows = series.flatMap(one => one.points.map(({x, y, low, high}) => [cell(one.name), x, y, low ?? '', high ?? ''].join(',')));
  return [`series,${spec.x},value,low,high`, ...rows, ''].join('\n');
}
