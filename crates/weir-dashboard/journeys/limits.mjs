// The limit editor and the proof: a preview while typing, an edit that everybody sees, a conflict, the way back.

import assert from 'node:assert/strict';

import { api, figure, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const receiver = await receive();

const destination = (name, limit, more = {}) =>
  api('POST', '/v1/destinations', {
    url: receiver.url(`/${name}`), name, event_types: [`${name}.*`],
    rate_limits: [{ limit, period: 'second' }], ...more,
  });

const perSecond = (page) => page.getByLabel('Sends in any second');
/** The cells of a row of the preview: its value now, and with the limits in the form. */
const outlook = (page, row) => page.locator('#preview').getByRole('row', { name: row }).getByRole('cell');
const save = (page) => page.getByRole('button', { name: 'Save limits' }).click();

journey('a limit is raised while a backlog drains: the preview, the ETA and the chart follow', async (visit) => {
  const { id } = await destination('draining', 2);
  await post('draining.made', 400);
  const viewer = await visit.open(`/destinations/${id}`);
  const editor = await visit.open(`/destinations/${id}`);
  await figure(viewer, 'Drains in').filter({ hasText: 'min' }).waitFor();
  await viewer.locator('#recent svg').waitFor();
  const markers = (page) => page.locator('#recent svg text', { hasText: '20/s' });
  assert.equal(await markers(viewer).count(), 0);

  await perSecond(editor).fill('20');
  // Sends are spaced a little wider than the limit, so that no sliding window has too many.
  await outlook(editor, 'Sends at most').filter({ hasText: '19.8/s' }).waitFor();
  await outlook(editor, 'Bound by').filter({ hasText: '20/s' }).waitFor();
  await outlook(editor, 'Backlog drains in').last().filter({ hasText: /^\d+ s/ }).waitFor();
  assert.match(await outlook(editor, 'Backlog drains in').first().textContent(), /min/);
  await visit.check(editor, 'limit-editor');

  // The other viewer does nothing, and sees it within a second of the answer to the edit.
  const saved = editor.waitForResponse((response) => response.request().method() === 'POST' && /\/limits$/.test(response.url()));
  await save(editor);
  await saved;
  const at = performance.now();
  await figure(viewer, 'Sending').filter({ hasText: 'of 19.8/s' }).waitFor();
  await figure(viewer, 'Drains in').filter({ hasText: /^\d+ s/ }).waitFor();
  await markers(viewer).first().waitFor({ state: 'attached' });
  const took = performance.now() - at;
  assert.ok(took < 1000, `the other viewer saw the edit after ${took} ms`);
  await editor.getByText('Limits saved: 2/s').waitFor();
});

journey('a limit that is too small for the backlog says before the save that deliveries expire', async (visit) => {
  // Paused, so that the backlog stays. At 5 a second it takes 20 seconds, and at 10 an hour ten hours.
  const { id } = await destination('expiring', 5, { paused: true });
  const events = Array.from({ length: 100 }, (_, n) => ({ type: 'expiring.made', data: n, ttl_s: 3_600 }));
  await api('POST', '/v1/events/batch', { events });
  const page = await visit.open(`/destinations/${id}`);
  const expires = outlook(page, 'Deliveries expire unsent');
  await expires.last().filter({ hasText: /^no$/ }).waitFor();
  await perSecond(page).fill('');
  await page.getByLabel('Sends in any hour').fill('10');
  await expires.last().filter({ hasText: /^yes the first at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/ }).waitFor();
  assert.equal(await expires.first().textContent(), 'no', 'the limits in force are fast enough');
  await visit.check(page, 'would-expire');
  const saved = async () => {
    const { rate_limits: limits } = await api('GET', `/v1/destinations/${id}`);
    return limits.map(({ limit, period }) => `${limit}/${period}`);
  };
  assert.deepEqual(await saved(), ['5/second'], 'a preview changes nothing');

  await page.getByLabel('Sends in any hour').fill('3600');
  await expires.last().filter({ hasText: /^no$/ }).waitFor();
  await save(page);
  await page.getByText('Limits saved: 5/s').waitFor();
  assert.deepEqual(await saved(), ['3600/hour']);
});

journey('the preview follows the backlog while nobody types, and says when it cannot be read', async (visit) => {
  const { id } = await destination('growing', 5, { paused: true });
  await post('growing.made', 100);
  const page = await visit.open(`/destinations/${id}`);
  const drains = outlook(page, 'Backlog drains in');
  await perSecond(page).fill('10');
  await drains.last().filter({ hasText: /^10 s/ }).waitFor();
  const before = await drains.first().textContent();
  await post('growing.made', 200);
  await drains.last().filter({ hasText: /^30 s/ }).waitFor();
  assert.notEqual(await drains.first().textContent(), before);
  assert.equal(await perSecond(page).inputValue(), '10', 'what was typed stays');
  visit.expect('net::ERR_FAILED', /\/preview$/);
  await page.route(/\/preview$/, (route) => route.abort());
  await page.getByText('The preview cannot be read now').waitFor();
  assert.equal(await drains.count(), 0, 'old figures are gone');
  await page.unroute(/\/preview$/);
  await drains.last().filter({ hasText: /^30 s/ }).waitFor();
  assert.equal(await perSecond(page).inputValue(), '10');
});

journey('an edit that came too late is explained, and can still be made or left', async (visit) => {
  const { id } = await destination('contested', 10);
  const page = await visit.open(`/destinations/${id}`);
  await api('PATCH', `/v1/destinations/${id}`, { rate_limits: [{ limit: 30, period: 'second' }] });
  visit.expect(412, /\/limits$/);
  await perSecond(page).fill('20');
  await save(page);
  const notice = page.getByRole('alert').filter({ hasText: 'somebody else changed this destination' });
  await notice.getByText('30/s').waitFor();
  await notice.getByText('20/s').waitFor();
  assert.equal(await perSecond(page).inputValue(), '20');
  const limit = async () => (await api('GET', `/v1/destinations/${id}`)).rate_limits[0].limit;
  assert.equal(await limit(), 30, 'nothing was saved');
  await visit.check(page, 'conflict');
  await save(page);
  await page.getByText('Limits saved: 30/s').waitFor();
  assert.equal(await limit(), 20);
});

journey('limits are restored with one click, and a wrong one is refused with its reason', async (visit) => {
  const { id } = await destination('reverted', 10);
  const page = await visit.open(`/destinations/${id}`);
  await perSecond(page).fill('70');
  await page.getByLabel('Sends in any minute').fill('600');
  await save(page);
  await page.getByText('Limits saved').waitFor();
  await page.getByText('Before, the limits were 10/s').waitFor();
  await visit.check(page, 'revert');
  await page.getByRole('button', { name: 'Restore them' }).click();
  await page.getByText('Limits saved: 70/s').waitFor();
  assert.equal(await perSecond(page).inputValue(), '10');
  const { rate_limits: limits } = await api('GET', `/v1/destinations/${id}`);
  assert.deepEqual(limits.map(({ limit, period }) => `${limit}/${period}`), ['10/second']);

  // A browser that does not check numbers.
  visit.expect(422, /\/(limits|preview)$/);
  await page.locator('#limits').evaluate((form) => { form.noValidate = true; });
  await perSecond(page).fill('0');
  await save(page);
  await page.getByText(/Not saved\./).waitFor();
  await visit.check(page, 'refused-limit');
});

journey('without JavaScript the preview is a button, and limits are saved', async (visit) => {
  const { id } = await destination('plain', 10);
  const page = await visit.open(`/destinations/${id}`, { scripts: false });
  await perSecond(page).fill('25');
  await page.getByRole('button', { name: 'Preview' }).click();
  await outlook(page, 'Bound by').filter({ hasText: '25/s' }).waitFor();
  assert.equal(await perSecond(page).inputValue(), '25');
  await save(page);
  await page.getByText('Limits saved: 10/s').waitFor();
});

journey('the proof has a verdict, a permalink, a picture and the data', async (visit) => {
  const { id } = await destination('proven', 10);
  await post('proven.made', 30);
  await receiver.wait('/proven', 30);
  const page = await visit.open(`/destinations/${id}/proof`);
  await page.getByText('Every limit held').waitFor();
  await page.getByRole('row').filter({ hasText: '10/s' }).getByText('of 10').first().waitFor();
  await visit.check(page, 'proof');
  await page.getByRole('link', { name: 'Permalink' }).click();
  await page.waitForURL(/from=.+&to=.+/);
  await page.getByText('Every limit held').waitFor();
  const range = await page.getByLabel('From').inputValue();
  const again = await visit.open(page.url());
  assert.equal(await again.getByLabel('From').inputValue(), range);
  for (const [name, type] of [['SVG', /svg/], ['CSV', /csv/]]) {
    const href = await page.getByRole('link', { name, exact: true }).getAttribute('href');
    const answer = await page.request.get(href);
    assert.equal(answer.status(), 200);
    assert.match(answer.headers()['content-type'], type);
  }
  await page.getByText('The same data as a table').click();
  await page.getByRole('columnheader', { name: 'Largest second' }).waitFor();
  await visit.check(page, 'proof-table');
});

journey('limits are overridden for a while: everybody sees until when and why, and anybody ends it', async (visit) => {
  const { id } = await destination('raised', 2);
  await post('raised.made', 400);
  const viewer = await visit.open(`/destinations/${id}`);
  const editor = await visit.open(`/destinations/${id}`);
  await editor.getByText('For a while only').click();
  await editor.getByLabel('Sends until the end').fill('20');
  await editor.getByLabel('For', { exact: true }).fill('2 h');
  await editor.getByLabel('Why', { exact: true }).fill('launch day');
  await visit.check(editor, 'override-form');
  await editor.getByRole('button', { name: 'Override the limits' }).click();
  await editor.getByText(/^20\/s until .* UTC\.$/).waitFor();

  // Without a reload.
  const banner = (page) => page.locator('#now .banner').filter({ hasText: 'launch day' });
  await banner(viewer).filter({ hasText: '20/s until' }).waitFor();
  await figure(viewer, 'Sending').filter({ hasText: 'of 19.8/s' }).waitFor();
  await visit.check(viewer, 'overridden');
  await banner(viewer).getByRole('button', { name: 'End now' }).click();
  await viewer.getByText('The override is over.').waitFor();
  await banner(editor).waitFor({ state: 'detached' });
  await figure(editor, 'Sending').filter({ hasText: /of (1\.98|2)\/s/ }).waitFor();
});
