// A page stays open while the server ends and starts again.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';

import { api, figure, journey } from './browser.mjs';

/** The test ends the server when a connection comes, and closes it when the server listens again. */
async function restart() {
  const [host, port] = process.env.WEIR_RESTART.split(':');
  const socket = connect(Number(port), host).resume();
  await once(socket, 'end');
  socket.destroy();
}

journey('a page that was open before a restart shows what changed after it', async (visit) => {
  const { id } = await api('POST', '/v1/destinations', { url: 'https://example.com/hooks', name: 'Durable' });
  const page = await visit.open(`/destinations/${id}`);
  const overview = await visit.open('/');
  await page.getByRole('button', { name: 'Live' }).waitFor();
  visit.expect('net::ERR_CONNECTION_REFUSED', /./);
  visit.expect('net::ERR_INCOMPLETE_CHUNKED_ENCODING', /\/live/);
  visit.expect('net::ERR_CONNECTION_RESET', /./);
  visit.expect('net::ERR_EMPTY_RESPONSE', /./);
  const lost = page.getByRole('button', { name: 'Reconnecting' }).waitFor();
  await restart();
  await lost;
  await api('PATCH', `/v1/destinations/${id}`, { paused: true, rate_limits: [{ limit: 7, period: 'second' }] });
  await page.getByRole('button', { name: 'Live' }).waitFor();
  await page.locator('#now').getByText('Paused.').waitFor();
  await overview.getByRole('row').filter({ hasText: 'Durable' }).getByText('7/s').waitFor({ state: 'attached' });
  assert.equal(await figure(overview, 'Destinations').textContent(), '1');
});
