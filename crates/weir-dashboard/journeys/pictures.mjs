// Draws the pictures of the documents. They need a Weir with an empty database and two minutes:
//
//   WEIR_URL=… WEIR_KEY=… WEIR_TEST_CHROMIUM=… WEIR_TEST_BROWSER_TOOLS=… node pictures.mjs ../../../docs/images

import assert from 'node:assert/strict';

import { api, figure, journey, post } from './browser.mjs';
import { receive } from './receiver.mjs';

const folder = process.argv[2];
assert.ok(folder, 'name the folder of the pictures');
/** How long the backlog drains before and after the edit, in seconds. */
const DRAINS_S = [50, 35];

const receiver = await receive();
const limit = (sends, period = 'second') => ({ limit: sends, period });
const destination = (name, type, more) =>
  api('POST', '/v1/destinations', { url: receiver.url(`/${type[0]}`), name, event_types: [`${type}.*`], ...more });
const seconds = (count) => new Promise((resolve) => setTimeout(resolve, count * 1000));

journey('the overview, the limit editor and the proof', async (visit) => {
  receiver.answer('/i', { status: 503 });
  const partner = await destination('Acme Video', 'video', { rate_limits: [limit(5), limit(200, 'minute')] });
  await destination('Northwind Billing', 'invoice', { rate_limits: [limit(20)], breaker: { consecutive: 5, open_ms: 600_000 } });
  await destination('Globex Analytics', 'view', { rate_limits: [limit(2)] });
  await destination('Initech CRM', 'contact', { rate_limits: [limit(100, 'minute')], paused: true });
  await destination('Hooli Search', 'page', { rate_limits: [limit(50)] });
  await post('video.published', 700);
  await post('invoice.paid', 60);
  await post('contact.updated', 84);
  const traffic = setInterval(() => Promise.all([post('view.counted', 9), post('page.indexed', 18)]), 1000);
  await seconds(DRAINS_S[0]);
  await api('PATCH', `/v1/destinations/${partner.id}`, { rate_limits: [limit(8), limit(300, 'minute')] });
  await seconds(DRAINS_S[1]);

  const page = await visit.open('/', { height: 600 });
  await page.getByRole('cell', { name: 'never drains' }).waitFor();
  await page.screenshot({ path: `${folder}/overview.png`, fullPage: true });

  await page.setViewportSize({ width: 1280, height: 1000 });
  await page.goto(`/destinations/${partner.id}`);
  await page.locator('#recent svg').first().waitFor();
  await page.getByLabel('Sends in any second').fill('20');
  await page.getByLabel('Sends in any minute').fill('900');
  await page.locator('#preview').getByText('900/min').waitFor();
  await figure(page, 'Drains in').filter({ hasText: /\d/ }).waitFor();
  await page.locator('#editor').evaluate((editor) => editor.scrollIntoView());
  await page.screenshot({ path: `${folder}/limit-editor.png` });

  const to = Date.now();
  const range = new URLSearchParams({
    from: new Date(to - (DRAINS_S[0] + DRAINS_S[1] + 40) * 1000).toISOString(), to: new Date(to).toISOString(), step: '10s',
  });
  await page.goto(`/destinations/${partner.id}/proof?${range}`);
  await page.getByText('Every limit held').waitFor();
  await page.screenshot({ path: `${folder}/proof.png`, fullPage: true });
  clearInterval(traffic);
});
