// The page of the API's document: found by a word, read on a telephone, and its commands work as they stand there.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

import { journey, key } from './browser.mjs';

const section = (page, method, path) => page.locator(`[id="${method}-${path.replace(/[^A-Za-z0-9]+/g, '-').replace(/^-|-$/g, '')}"]`);

journey('the commands of the page work in a shell', async (visit) => {
  const page = await visit.open('/docs', { as: null });
  for (const [method, path, field] of [
    ['post', '/v1/destinations', 'secret'], ['post', '/v1/events', 'duplicate'], ['get', '/v1/deliveries', 'next_cursor'],
    ['post', '/v1/replays', 'remaining'], ['put', '/v1/alerts', 'dead_letters'],
  ]) {
    const command = await section(page, method, path).locator('pre').first().textContent();
    const shell = promisify(execFile);
    const { stdout } = await shell('sh', ['-c', command], { env: { ...process.env, WEIR_API_KEY: key } });
    assert.ok(field in JSON.parse(stdout), `${command}\n${stdout}`);
  }
});

journey('a word finds the operations and schemas that have it, and required fields come first', async (visit) => {
  const page = await visit.open('/docs', { as: null });
  const replays = section(page, 'post', '/v1/replays');
  await replays.waitFor();
  await page.getByLabel('Search').fill('DRY_RUN replay');
  await section(page, 'get', '/v1/keys').waitFor({ state: 'hidden' });
  await replays.waitFor();
  assert.match(await page.locator('#found').textContent(), /^[1-9] found$/);
  assert.equal(await page.locator('nav').getByText('GET /v1/keys').isVisible(), false);
  await page.getByLabel('Search').fill('');
  await section(page, 'get', '/v1/keys').waitFor();

  const event = section(page, 'post', '/v1/events');
  await event.getByText('Fields of the body').click();
  const names = await event.locator('details tbody td:first-child').allTextContents();
  assert.deepEqual(names.slice(0, 3), ['data required', 'type required', 'coalesce_key']);
  await event.getByText('Needs a key with the role ingest, operate or admin.').waitFor();
});

journey('it fits a wide and a narrow window, and everybody can use it', async (visit) => {
  const page = await visit.open('/docs', { as: null });
  await section(page, 'get', '/docs').waitFor();
  await page.locator('main details').evaluateAll((folded) => folded.forEach((details) => { details.open = true; }));
  await visit.assertFits(page, 'documentation');
  // Every kind of part is among these. axe would take minutes for the whole page.
  await page.getByLabel('Search').fill('replay');
  await section(page, 'get', '/v1/keys').waitFor({ state: 'hidden' });
  await visit.check(page, 'documentation');
  const narrow = await visit.open('/docs#post-v1-events', { as: null, width: 360, height: 740 });
  const event = section(narrow, 'post', '/v1/events');
  await event.waitFor();
  assert.ok(await event.evaluate((element) => element.getBoundingClientRect().top < innerHeight), 'the fragment is shown');
  await narrow.locator('main details').evaluateAll((folded) => folded.forEach((details) => { details.open = true; }));
  await visit.assertFits(narrow, 'documentation');
  await narrow.getByText('Contents').click();
  await narrow.locator('nav').getByText('POST /v1/replays', { exact: true }).click();
  const replays = section(narrow, 'post', '/v1/replays');
  assert.ok(await replays.evaluate((element) => element.getBoundingClientRect().top < innerHeight), 'a link leads there');
});
