// The list of all episodes of a run: searched, filtered, sorted, walked through by keyboard. A query is words:
//   solved:yes|no|error  step:400..500  turns:>2  reward:<0.5  flat:>1  in:training|test|page  agent:NAME  turn:2  and any text
// Text and agents are known only of the episodes whose candidates are on the page.

// The streams of each run, parsed when they are first needed.
const INDEX = RUNS.map(run => () => {
  INDEX.parsed ||= JSON.parse(document.getElementById('index').textContent);
  return INDEX.parsed[run.index];
});

function entries(run, streams) {
  const trees = new Map(run.episode_sets.flatMap(set => set.episodes.map(tree => [`${set.held_out} ${set.step} ${tree.episode}`, tree])));
  return streams.flatMap(({step, held_out: heldOut, names, verdicts, turns, groups, flat, rewards}) => rewards.map((reward, place) => {
    const name = names.length ? names[place] : `${step}.${place}`;
    return {step, heldOut, name, reward, solved: verdicts[place] === '1', error: verdicts[place] === 'e', turns: parseInt(turns[place], 36),
      groups: parseInt(groups[place], 36), flat: parseInt(flat[place], 36), tree: trees.get(`${heldOut} ${step} ${name}`)};
  }));
}

// `3`, `>3`, `<0.5`, `2..5` as a test of a number.
function ofNumber(text) {
  const [, sign, from, to] = /^([<>]=?)?(-?[\d.]+?)?(?:\.\.(-?[\d.]+)?)?$/.exec(text) || [];
  if (from === undefined && to === undefined) return () => true;
  if (sign) return value => value !== null && ({'<': value < +from, '<=': value <= +from, '>': value > +from, '>=': value >= +from})[sign];
  if (text.includes('..')) return value => value !== null && value >= +(from ?? -Infinity) && value <= +(to ?? Infinity);
  return value => value === +from;
}

const textOf = tree => tree.text ||= [tree.task, ...tree.errors, ...tree.groups.flatMap(group =>
  [...group.prompt.map(message => message.content), ...group.members.map(member => member.text)])].join('\n').toLowerCase();

function parsed(text) {
  const tests = [], agents = [], turns = [];
  for (const word of text.toLowerCase().split(/\s+/).filter(Boolean)) {
    const [, key, value] = /^(\w+):(.+)$/.exec(word) || [];
    if (key === 'solved') tests.push(entry => value === 'error' ? entry.error : entry.solved === value.startsWith('y'));
    else if (key === 'in') tests.push(entry => value === 'page' ? entry.tree : entry.heldOut === (value !== 'training'));
    else if (['step', 'turns', 'reward', 'flat', 'groups'].includes(key)) { const test = ofNumber(value); tests.push(entry => test(entry[key])); }
    else if (key === 'agent') { agents.push(value); tests.push(entry => entry.tree?.groups.some(group => group.agent.toLowerCase() === value)); }
    else if (key === 'turn') turns.push(ofNumber(value));
    else tests.push(entry => entry.name === word || (entry.tree && textOf(entry.tree).includes(word)));
  }
  return {takes: entry => tests.every(test => test(entry)), agents: name => agents.length === 0 || agents.includes(name.toLowerCase()),
    turns: turn => turns.every(test => test(turn))};
}

const ORDERS = {
  'in order': null,
  'lowest reward': (a, b) => (a.reward ?? -Infinity) - (b.reward ?? -Infinity),
  'highest reward': (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  'most flat groups': (a, b) => b.flat - a.flat,
  'most groups that teach': (a, b) => (b.groups - b.flat) - (a.groups - a.flat),
  'most turns': (a, b) => b.turns - a.turns,
};

function list(run, streams, show, body) {
  const ROOM = 100;
  let all, found = [], at = 0, most = ROOM, query = parsed('');
  const rows = h('div', {class: 'rows', role: 'listbox', 'aria-label': 'episodes'}), counter = h('span', {class: 'faint', 'aria-live': 'polite'});
  const search = h('input', {type: 'search', placeholder: 'solved:no step:40..60 reward:<1 agent:… text', 'aria-label': 'search episodes',
    title: 'solved:yes, no or error · step:40..60 · reward:<1 · turns:>2 · flat:>0 · in:training, test or page · agent:NAME · turn:2 · any text', oninput: () => look()});
  const order = h('select', {'aria-label': 'order', onchange: () => look()}, Object.keys(ORDERS).map(name => h('option', {}, name)));
  const link = entry => `#episode=${entry.heldOut ? 'test' : 'training'}/${entry.step}/${encodeURIComponent(entry.name)}`;
  const draw = () => rows.replaceChildren(...[...found.slice(0, most).map((entry, place) => h('button', {
    role: 'option', tabindex: place === at ? 0 : -1, 'aria-selected': String(place === at), onclick: () => go(place),
  }, h('span', {class: `check ${entry.solved ? 'good' : 'bad'}`}, entry.solved ? '✓' : '✗'), h('span', {class: 'name'}, entry.name, entry.heldOut && h('i', {}, ' test')),
  h('span', {class: 'faint'}, entry.reward === null ? 'no reward' : short(entry.reward)), h('span', {class: 'faint'}, entry.tree ? '●' : ''))),
  found.length > most && h('button', {class: 'more', onclick: () => { most *= 4; draw(); }}, `${count(found.length - most)} more`)].filter(Boolean));
  const go = (place, write = true) => {
    if (!found.length) return body.replaceChildren();
    at = Math.max(0, Math.min(found.length - 1, place));
    if (at >= most) { most = at + ROOM; draw(); }
    // The list is one stop of the keyboard; arrows go through it.
    const focused = rows.contains(document.activeElement);
    [...rows.children].forEach((row, index) => { row.setAttribute('aria-selected', String(index === at)); row.tabIndex = index === at ? 0 : -1; });
    const row = rows.children[at];
    rows.scrollTop = Math.max(0, Math.min(rows.scrollTop, row.offsetTop - rows.offsetTop)) || 0;
    if (row.offsetTop - rows.offsetTop + row.offsetHeight > rows.scrollTop + rows.clientHeight) rows.scrollTop = row.offsetTop - rows.offsetTop + row.offsetHeight - rows.clientHeight;
    if (focused) row.focus({preventScroll: true});
    show(found[at], query);
    if (write) history.replaceState(null, '', link(found[at]));
  };
  const look = (write = true) => {
    query = parsed(search.value);
    found = all.filter(query.takes);
    const by = ORDERS[order.value];
    if (by) found.sort(by);
    counter.textContent = `${count(found.length)} of ${count(all.length)}`;
    most = ROOM;
    draw();
    go(0, write);
  };
  // The address of an episode opens it.
  const follow = () => {
    const [, where, step, name] = /^#episode=(\w+)\/(\d+)\/(.+)$/.exec(location.hash) || [];
    const place = name === undefined ? -1 : found.findIndex(entry => entry.heldOut === (where === 'test') && entry.step === +step && entry.name === decodeURIComponent(name));
    if (place >= 0) { go(place, false); document.getElementById('episodes').scrollIntoView(); }
  };
  const begin = () => {
    all = entries(run, streams);
    if (all.some(entry => entry.tree)) search.value = 'in:page';
    look(false);
    go(Math.max(0, found.findIndex(entry => !entry.heldOut)), false);
    if (location.hash.startsWith('#episode=')) { search.value = ''; look(false); follow(); }
  };
  addEventListener('hashchange', () => { if (rows.isConnected && location.hash.startsWith('#episode=')) { search.value = ''; look(false); follow(); } });
  document.addEventListener('keydown', event => {
    if (!rows.isConnected || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search) { if (event.key === 'Escape') search.blur(); return; }
    if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const inside = rows.contains(event.target) ? {ArrowDown: 1, ArrowUp: -1, Home: -found.length, End: found.length} : {};
    const move = {j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1, ...inside}[event.key];
    if (move) { event.preventDefault(); go(at + move); } else if (event.key === '/') { event.preventDefault(); search.focus(); search.select(); }
  });
  // Half a million episodes are listed once the page stands, not before.
  setTimeout(begin);
  return h('div', {class: 'browser'}, h('div', {class: 'side'}, h('div', {class: 'find'}, search, h('div', {class: 'row'}, order, counter)), rows,
    h('p', {class: 'note'}, h('kbd', {}, '/'), ' search, ', h('kbd', {}, 'j'), ' next, ', h('kbd', {}, 'k'), ' previous')), body);
}
