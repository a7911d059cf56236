// The sections of the page: which metrics are drawn together, and what a reader should look for in them.

const SEVERAL = RUNS.length > 1;
// Seven colors, and after them the same ones half as strong.
const color = index => index % 14 < 7 ? `var(--c${index % 7})` : `color-mix(in oklab, var(--c${index % 7}) 50%, var(--paper))`;

// One curve for each run and value of a column (an agent, a policy). One run: a color for each value. Several runs: a
// color for each method and a dash for each value, the same in all charts; seeds of a method are drawn as their mean.
const VALUES = Object.fromEntries(['agent', 'policy'].map(column =>
  [column, [...new Set(RUNS.flatMap(run => distinct(run.series, column)))].filter(Boolean).sort()]));
const DASHED = [...new Set(Object.values(VALUES).filter(values => values.length > 1).flat())];
function curves(metric, column, split = 'train') {
  return METHODS.flatMap(method => VALUES[column].map((value, index) => {
    const place = SEVERAL ? Math.max(0, DASHED.indexOf(value)) : index;
    const lists = method.runs.map(run => points(pick(run, {metric, split, [column]: value}))).filter(list => list.length > 0);
    return {
      name: SEVERAL ? `${method.name}, ${value}` : value, method: SEVERAL && method, band: false,
      color: color(SEVERAL ? method.index : place), dash: DASHES[place % DASHES.length], points: overSeeds(lists),
    };
  }));
}

function section(id, title, ...children) {
  return h('section', {id}, h('h2', {}, title), children);
}

// Success: held out with its interval, and in training. Of a method with several runs the mean of its seeds is drawn.
const RATE = {format: percent, tick: y => `${Math.round(100 * y)} %`, domain: [0, 1]};
const SEEDS = METHODS.some(method => method.runs.length > 1);
function success() {
  const environments = [...new Set(RUNS.flatMap(run => distinct(find(run, {metric: 'success'}), 'environment')))];
  const named = (name, environment, what) => [SEVERAL && name, environments.length > 1 && environment, !SEVERAL && what].filter(Boolean).join(', ');
  const of = (split, what, thin, onTokens) => METHODS.flatMap(method => environments.map((environment, place) => {
    const lists = method.runs.map(run => {
      const list = points(pick(run, {metric: 'success', split, environment, agent: ''}));
      return onTokens ? spent(run, list) : list;
    }).filter(list => list.length > 0);
    return {
      name: named(method.name, environment, what), thin, band: !thin, method: SEVERAL && method, points: overSeeds(lists),
      color: color(SEVERAL ? method.index : place * 2 + (thin ? 1 : 0)),
      dash: thin ? '3 2' : DASHES[(SEVERAL ? place : 0) % DASHES.length],
    };
  }));
  const band = SEEDS ? 'the band is from the lowest seed to the highest, or the 95 % interval of a single run' : 'the band is the 95 % interval';
  const legend = SEVERAL && environments.length === 1 ? false : undefined;
  return [
    chart({...RATE, legend, title: 'Success', height: 300, series: [...of('test', 'held out'), ...(SEVERAL ? [] : of('train', 'in training', true))],
      note: `Held out: the policy alone, most likely tokens, on tasks that it never trains on; ${band}.${SEVERAL ? '' : ' In training: sampled, while it learns.'}`}),
    chart({...RATE, legend, title: 'Success for what it cost', height: 300, xName: 'tokens', series: of('test', 'held out', false, true),
      note: 'The same held-out success against the tokens generated in training so far: runs of different widths compare at equal cost.'}),
    SEVERAL && chart({...RATE, legend, title: 'Success in training', height: 300, series: of('train', 'in training').map(one => ({...one, band: false})),
      note: 'Sampled, while it learns.'}),
  ];
}

// The mean of several curves where all of them are, with the lowest and the highest; a single curve is left as it is.
function overSeeds(lists) {
  if (lists.length < 2) return lists[0] || [];
  const sorted = lists.map(list => [...list].sort((a, b) => a.x - b.x));
  const [from, to] = [Math.max(...sorted.map(list => list[0].x)), Math.min(...sorted.map(list => last(list).x))];
  const at = (list, x) => {
    const next = list.find(point => point.x >= x), before = list.findLast(point => point.x <= x);
    return next.x === before.x ? next.y : before.y + (next.y - before.y) * (x - before.x) / (next.x - before.x);
  };
  const xs = [...new Set(sorted.flatMap(list => list.map(point => point.x)))].filter(x => x >= from && x <= to).sort((a, b) => a - b);
  return xs.map(x => {
    const ys = sorted.map(list => at(list, x));
    return {x, y: mean(ys), low: Math.min(...ys), high: Math.max(...ys)};
  });
}

// Points of a curve with the tokens generated so far in place of the step.
function spent(run, list) {
  const tokens = totals(pick(run, {metric: 'completion_tokens', split: 'train'})).sort((a, b) => a.x - b.x);
  if (run.drawn_every > 1) return []; // a sum over some of the steps would be too low
  let [place, soFar] = [0, 0];
  return [...list].sort((a, b) => a.x - b.x).map(point => {
    while (place < tokens.length && tokens[place].x <= point.x) soFar += tokens[place++].y;
    return {...point, x: soFar};
  });
}

function learning() {
  const small = [
    {title: 'Reward by role', note: 'Mean over all candidates of a step, chosen or not.', series: curves('reward', 'agent')},
    {title: 'Spread of rewards by role', note: 'Standard deviation over all candidates of a step. Without spread there is nothing to learn from.', series: curves('reward_std', 'agent')},
    {title: 'Completion length by role', note: 'Mean tokens, the stop token included.', series: curves('completion_length', 'agent')},
    {title: 'Gradient norm', note: 'Before clipping, mean over the step’s optimizer steps.', series: curves('grad_norm', 'policy')},
    {title: 'Entropy', note: 'Of the next token, in nats. A fall to 0 ends exploration.', series: curves('entropy', 'policy')},
    {title: 'Loss', note: 'Near 0 by construction when every step is on-policy: it shows trouble, not progress.', series: curves('loss', 'policy')},
    {title: 'Share of clipped tokens', note: '0 with one optimizer step a batch; more minibatches move the policy while it learns.', series: curves('clip_ratio', 'policy'), format: percent},
    {title: 'KL to the reference', note: 'Only with update --kl.', series: curves('kl', 'policy')},
    {title: 'Sampler against trainer', note: 'Largest difference of a token’s log-probability between rollout and update, nats. Above 0.01 the two disagree about the policy.',
      series: curves('sampling/logp_difference_max', 'policy'), log: true, format: short},
  ];
  if (SEVERAL) for (const spec of small) spec.legend = false;
  return section('learning', 'Learning', SEVERAL && methods(DASHED),
    h('div', {class: 'grid wide'}, success()), h('div', {class: 'grid'}, small.map(chart)));
}

// The loop, with what went through each pipe at the last step.
function loop(run) {
  const now = (metric, wanted = {}) => sum(find(run, {metric, split: 'train', ...wanted}).filter(one => last(one.steps) === run.last).map(one => last(one.values)));
  const time = metric => sum(find(run, {metric, split: 'timing'}).filter(one => last(one.steps) === run.last).map(one => last(one.values)));
  const of = {agent: '', policy: ''};
  if (run.last === null || !now('groups', of)) return null;
  const [samples, groups, flat] = [sum(VALUES.agent.map(agent => now('samples', {agent}))), now('groups', of), now('groups_flat', of)];
  const box = (name, facts) => h('div', {class: 'stage'}, h('b', {}, name), facts.filter(Boolean).map(fact => h('span', {}, fact)));
  const pipe = fact => h('div', {class: 'pipe'}, fact);
  const rolled = time('rollout/seconds'), trained = time('update/seconds'), tokens = sum(VALUES.agent.map(agent => now('completion_tokens', {agent})));
  return h('div', {class: 'scroll'}, h('div', {class: 'loop', role: 'img', 'aria-label': `what went through the pipe at step ${run.last}`},
    box('envs tasks', [`step ${run.last}`]), pipe(plural(now('episodes'), 'task')),
    box('rollout', [plural(tokens, 'token'), rolled > 0 && `${seconds(rolled)}, ${short(tokens / rolled)} tokens/s`]), pipe(plural(samples, 'sample')),
    box('group', [plural(groups, 'group')]), pipe(`${count(flat)} flat`),
    box('advantage', [`${count(groups - flat)} teach`]), pipe(plural(samples, 'sample')),
    box('update', [plural(now('optimizer_steps'), 'optimizer step'), trained > 0 && seconds(trained)])));
}

function accounts(run) {
  const totalsOf = metric => pick(run, {metric, split: 'train', agent: '', policy: ''});
  const byStep = list => new Map(list.map(row => [row.step, row.value]));
  const [seen, flat] = [totalsOf('groups'), totalsOf('groups_flat')], flatAt = byStep(flat);
  const taught = seen.map(row => ({x: row.step, y: row.value - (flatAt.get(row.step) || 0)}));
  const reasons = distinct(run.series.filter(one => one.metric.startsWith('groups_dropped/')), 'metric');
  const series = [
    {name: 'compared', color: color(0), points: taught},
    {name: 'flat: all candidates earned the same', color: 'var(--idle)', points: points(flat)},
    ...reasons.map((metric, place) => ({name: `dropped by ${metric.slice(15)}`, color: color(place + 1), points: points(totalsOf(metric))})),
  ];
  const all = metric => sum(totalsOf(metric).map(row => row.value));
  const shares = distinct(run.series.filter(one => one.agent !== ''), 'agent').map((agent, place) => {
    const groups = byStep(pick(run, {metric: 'groups', split: 'train', agent}));
    return {name: agent, color: color(place), dash: DASHES[place % DASHES.length],
      points: pick(run, {metric: 'groups_flat', split: 'train', agent}).map(row => ({x: row.step, y: row.value / Math.max(1, groups.get(row.step))}))};
  });
  return section('groups', 'Groups',
    h('p', {class: 'note'}, 'A group is the candidates of one agent at one turn of one episode. Candidates are compared only with their siblings, so a group whose members earned the same teaches nothing.'),
    h('div', {class: 'grid wide'},
      chart({title: 'Groups of each step', kind: 'bars', series, height: 220, format: count, tick: short}),
      chart({title: 'Share of flat groups by role', series: shares, height: 220, format: percent, tick: y => `${Math.round(100 * y)} %`, domain: [0, 1]})),
    h('div', {class: 'scroll'}, proof(run, totalsOf, all, reasons)));
}

// The books of a run: what has to add up, and whether it does.
function proof(run, totalsOf, all, reasons) {
  const expected = totalsOf('groups_expected');
  const dropped = new Map(totalsOf('groups_dropped').map(row => [row.step, row.value]));
  const seen = new Map(totalsOf('groups').map(row => [row.step, row.value]));
  const off = expected.filter(row => row.value !== seen.get(row.step) + dropped.get(row.step));
  const verdict = (good, text) => h('span', {class: `check ${good ? 'good' : 'bad'}`}, `${good ? '✓' : '✗'} ${text}`);
  const line = (name, number, what) => h('tr', {}, h('td', {}, name), h('td', {class: 'number'}, number), h('td', {}, what));
  const [uneven, mixed] = [all('groups_uneven'), all('groups_mixed_prompts')];
  return h('table', {class: 'facts'},
    line('Expected: one for each agent that acts, at each turn of each episode', expected.length ? count(sum(expected.map(row => row.value))) : 'not told',
      expected.length === 0 ? 'the grouping has no fixed number' : off.length === 0
        ? verdict(true, `seen and dropped add up at ${plural(expected.length, 'step')}`)
        : verdict(false, `does not add up at ${plural(off.length, 'step')}: ${off.slice(0, 5).map(row => row.step).join(', ')}`)),
    line('Seen', count(all('groups')), `of which ${count(all('groups_flat'))} flat (${percent(all('groups_flat') / Math.max(1, all('groups')))})`),
    line('Dropped', count(all('groups_dropped')), reasons.map(metric => `${metric.slice(15)} ${count(all(metric))}`).join(', ') || 'none'),
    line('Groups without exactly as many members as branches', count(uneven), uneven === 0 ? verdict(true, 'every group is whole') : run.equal_prompts ? verdict(false, 'groups are not whole') : 'as its grouping has it'),
    line('Groups whose members have different prompts', count(mixed), mixed === 0 ? verdict(true, 'token for token the same') : run.equal_prompts ? verdict(false, 'candidates of different states were compared') : 'as its grouping has it'));
}

// At which turn episodes were solved.
function turns(run) {
  const charts = distinct(find(run, {split: 'train', metric: 'episodes'}), 'environment').map(environment => {
    const of = metric => pick(run, {split: 'train', environment, metric});
    const solved = distinct(run.series.filter(one => one.environment === environment && one.metric.startsWith('solved_at_turn/')), 'metric')
      .sort((a, b) => a.slice(15) - b.slice(15));
    const errors = new Map(of('errors').map(row => [row.step, row.value]));
    const done = new Map(totals(solved.flatMap(of)).map(({x, y}) => [x, y]));
    const failed = of('episodes').map(row => ({x: row.step, y: row.value - (errors.get(row.step) || 0) - (done.get(row.step) || 0)}));
    return chart({
      title: `Episodes of ${environment} by the turn that solved them`, kind: 'bars', height: 220, format: count, tick: short,
      note: 'In training. An earlier turn is a better answer; the rest ran out of turns or ended without success.',
      series: [...solved.map((metric, place) => ({name: `turn ${+metric.slice(15) + 1}`, color: color(place), points: points(of(metric))})),
        {name: 'not solved', color: 'var(--idle)', points: failed}, {name: 'could not be scored', color: 'var(--bad)', points: points(of('errors').filter(row => row.value > 0))}],
    });
  });
  return charts;
}

function rewards(run) {
  const components = distinct(run.series.filter(one => one.metric.startsWith('component/')), 'metric');
  const agents = distinct(run.series.filter(one => one.agent !== ''), 'agent');
  return section('rewards', 'Rewards', h('p', {class: 'note'}, 'What the rewards of each role were made of, mean over all its candidates, before weights.'),
    h('div', {class: 'grid wide'}, agents.map(agent => chart({
      title: `Components for ${agent}`, height: 220,
      series: components.map((metric, place) => ({name: metric.slice(10), color: color(place), dash: DASHES[place % DASHES.length],
        points: points(pick(run, {metric, agent, split: 'train'}))})),
    })), turns(run)));
}

function cost(run) {
  const agents = distinct(find(run, {metric: 'completion_tokens', split: 'train'}), 'agent');
  const tokens = [...agents.map((agent, place) => ({name: `generated by ${agent}`, color: color(place), points: points(pick(run, {metric: 'completion_tokens', split: 'train', agent}))})),
    {name: 'prompts, each once', color: 'var(--idle)', points: totals(pick(run, {metric: 'prompt_tokens', split: 'train'}))}];
  const time = (metric, name, place) => ({name, color: color(place), points: totals(pick(run, {split: 'timing', metric}))});
  const training = new Map(totals(pick(run, {split: 'timing', metric: 'update/training_seconds'})).map(({x, y}) => [x, y]));
  const publishing = totals(pick(run, {split: 'timing', metric: 'update/seconds'})).map(({x, y}) => ({x, y: Math.max(0, y - (training.get(x) || 0))}));
  const parts = [['rollout/model_seconds', 'the model'], ['rollout/environment_seconds', 'environments'], ['rollout/text_seconds', 'text and lines'], ['rollout/waiting_seconds', 'waiting']];
  return section('cost', 'Tokens and time', h('div', {class: 'grid'},
    chart({title: 'Tokens of each step', kind: 'bars', series: tokens, height: 220, format: count, tick: short}),
    chart({title: 'Time of each step', kind: 'bars', height: 220, format: seconds, note: 'Seconds. Grouping and advantages are computed while rollout works.',
      series: [time('rollout/seconds', 'rollout', 0), time('update/training_seconds', 'update: training', 1), {name: 'update: opening and publishing', color: color(2), points: publishing}]}),
    chart({title: 'What the threads of rollout did', kind: 'bars', height: 220, format: seconds, note: 'Seconds, summed over threads. Models run in threads of their own, while environments and text go on.',
      series: parts.map(([metric, name], place) => time(metric, name, place))})));
}

function settings(run) {
  const entries = Object.entries(run.settings).filter(([, value]) => value !== '');
  return section('settings', 'Settings', h('p', {class: 'note'}, 'Every resolved value of the run, from its run.json.'),
    h('div', {class: 'settings'}, entries.map(([name, value]) => h('div', {}, h('span', {}, name.replace(/_/g, ' ')), h('span', {}, String(value).replace(/\n/g, ', '))))));
}
