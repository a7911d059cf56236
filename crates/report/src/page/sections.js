// The sections of the page: which charts are drawn together, and what a reader should look for in them.

function section(id, title, ...children) {
  return h('section', {id, tabindex: -1}, h('h2', {}, title), children);
}

function learning() {
  // Several runs share one legend, where a method has one curve in a chart.
  const large = DATA.success.map(spec => chart(spec, {height: 316, legend: !SEVERAL || spec.series.length > METHODS.length}));
  const small = DATA.measured.map(spec => chart(spec, {legend: !SEVERAL}));
  if (large.length + small.length === 0) return section('learning', 'Learning', h('p', {class: 'note'}, 'Nothing is measured yet.'));
  return section('learning', 'Learning', SEVERAL && methods(), h('div', {class: 'row'}, smoothing()),
    h('div', {class: 'grid wide'}, large), h('div', {class: 'grid'}, small));
}

// The loop, with what went through each pipe at the last step.
function loop({summary: {loop: now}}) {
  if (!now) return null;
  const box = (name, facts) => h('div', {class: 'stage'}, h('b', {}, name), facts.filter(Boolean).map(fact => h('span', {}, fact)));
  const pipe = fact => h('div', {class: 'pipe'}, fact);
  return h('div', {class: 'scroll'}, h('div', {class: 'loop', role: 'img', 'aria-label': `what went through the pipe at step ${now.step}`},
    box('envs tasks', [`step ${now.step}`]), pipe('tasks'),
    box('rollout', [plural(now.episodes, 'episode'), plural(now.tokens, 'token'), now.rollout_seconds > 0 && `${seconds(now.rollout_seconds)}, ${short(now.tokens / now.rollout_seconds)} tokens/s`]), pipe(plural(now.samples, 'sample')),
    box('group', [plural(now.groups, 'group')]), pipe(`${count(now.flat)} flat`),
    box('advantage', [`${count(now.groups - now.flat)} teach`]), pipe(plural(now.samples, 'sample')),
    box('update', [plural(now.optimizer_steps, 'optimizer step'), now.update_seconds > 0 && seconds(now.update_seconds)])));
}

function accounts(run) {
  return run.groups.length > 0 && section('groups', 'Groups',
    h('p', {class: 'note'}, 'A group is the candidates of one agent at one turn of one episode. Candidates are compared only with their siblings, so a group whose members earned the same teaches nothing.'),
    h('div', {class: 'grid wide'}, run.groups.map(spec => chart(spec, {height: 234}))),
    run.summary.group_totals && h('div', {class: 'scroll'}, proof(run, run.summary.group_totals)));
}

// The groups of a run: what has to add up, and whether it does.
function proof(run, group_totals) {
  const verdict = (good, text) => h('span', {class: `check ${good ? 'good' : 'bad'}`}, `${good ? '✓' : '✗'} ${text}`);
  const line = (name, number, what) => h('tr', {}, h('td', {}, name), h('td', {class: 'number'}, number), h('td', {}, what));
  const {expected, steps, off, seen, flat, dropped, reasons, uneven, mixed} = group_totals;
  return h('table', {class: 'facts'},
    line('Expected: one for each agent that acts, at each turn of each episode', expected === null ? 'unknown' : count(expected),
      expected === null ? 'the grouping has no fixed number' : off.length === 0
        ? verdict(true, `seen and dropped add up at ${plural(steps, 'step')}`)
        : verdict(false, `does not add up at ${plural(off.length, 'step')}: ${off.slice(0, 5).join(', ')}`)),
    line('Seen', count(seen), `of which ${count(flat)} flat (${percent(flat / Math.max(1, seen))})`),
    line('Dropped', count(dropped), Object.entries(reasons).map(([reason, number]) => `${reason} ${count(number)}`).join(', ') || 'none'),
    line('Groups without exactly as many members as branches', count(uneven), uneven === 0 ? verdict(true, 'every group is whole') : run.equal_prompts ? verdict(false, 'groups are not whole') : 'as its grouping has it'),
    line('Groups whose members have different prompts', count(mixed), mixed === 0 ? verdict(true, 'token for token the same') : run.equal_prompts ? verdict(false, 'candidates of different states were compared') : 'as its grouping has it'));
}

function rewards(run) {
  return run.rewards.length > 0 && section('rewards', 'Rewards', h('p', {class: 'note'}, 'The parts of each role’s rewards, before weights.'),
    h('div', {class: 'grid wide'}, run.rewards.map(spec => chart(spec, {height: 234}))));
}

function cost(run) {
  return run.cost.length > 0 && section('cost', 'Tokens and time', h('div', {class: 'grid'}, run.cost.map(spec => chart(spec, {height: 234}))));
}

// Every value of a run. Those that differ from their default are marked, with the default behind them.
function settings(run) {
  const defaults = run.defaults || {};
  const entries = Object.entries(run.settings).filter(([name, value]) => value !== '' || name in defaults);
  if (entries.length === 0) return null;
  const shown = value => value === '' ? 'none' : [value].flat().join('; ').replace(/\n/g, ', ');
  const row = ([name, value]) => h('div', {class: name in defaults ? 'own' : ''}, h('span', {}, name.replace(/_/g, ' ')),
    h('span', {}, shown(value), name in defaults && h('small', {}, ` default ${shown(defaults[name])}`)));
  const list = h('div', {class: 'settings'}, entries.map(row));
  const own = entries.filter(([name]) => name in defaults).length;
  const only = own > 0 && h('button', {'aria-pressed': 'false', onclick: () => {
    only.setAttribute('aria-pressed', String(list.classList.toggle('only-own')));
  }}, `Only the ${own} that differ from the default`);
  return section('settings', 'Settings', h('p', {class: 'note'}, 'Every resolved value of the run, from its run.json.'), only, list);
}
