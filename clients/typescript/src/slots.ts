/**
 * Slots of limit groups: a program that shares a quota with Weir takes its turn before each call.
 *
 * The server says how long its slot is away, and how long it took for the answer. What the client measured beyond that is
 * the way of the request and the answer, so a call starts inside its slot whatever the clocks of both say.
 */

import { SlotMissed, Unavailable } from "./errors.js";
import type { Parts, Transport } from "./transport.js";
import type { ReservedSlot } from "./types.js";

/** One request waits for no longer than this, so that proxies do not end it. */
const LONGEST_POLL_MS = 20_000;
/** Beyond its wait, a request may take this long. */
const ANSWER_MS = 10_000;
/** A pause after a refusal that does not say how long to wait. */
const PAUSE_MS = 1_000;

export interface SlotOptions {
  /** How much of each limit with the unit `cost` the call takes; by default 1. */
  cost?: number;
  /** How long to wait for a slot; by default 30 s. */
  waitMs?: number;
  /** How long the slot is at least; by default 250 ms. */
  widthMs?: number;
}

/** A limit group from which this program takes slots. */
export class Limit {
  private readonly route: string;
  private readonly parts: Parts;

  constructor(
    private readonly transport: Transport,
    private readonly sleep: (ms: number) => Promise<void>,
    group: string,
    tenant: string,
  ) {
    const byId = group.startsWith("lgr_");
    this.route = byId
      ? "/v1/limit-groups/{id}/reservations"
      : "/v1/limit-groups/by-name/{tenant}/{name}/reservations";
    this.parts = byId ? { id: group } : { tenant, name: group };
  }

  /**
   * Makes a call in a slot, and returns its answer.
   *
   * The call begins inside the slot. `Unavailable`: there was no slot within `waitMs`. `SlotMissed`: the slot was over before
   * the call could begin, because this program or the network was slow; a larger `widthMs` helps.
   */
  async slot<T>(call: (slot: ReservedSlot) => Promise<T> | T, options: SlotOptions = {}): Promise<T> {
    const { slot, starts, ends } = await this.reserve(options);
    try {
      // A timer may fire a little early.
      for (let left = starts - performance.now(); left > 0; left = starts - performance.now()) {
        await this.sleep(Math.ceil(left));
      }
    } catch (error) {
      // The call does not begin.
      await this.giveBack(slot);
      throw error;
    }
    if (performance.now() >= ends) throw new SlotMissed(`the slot ${slot.id} was over before the call could start`);
    return call(slot);
  }

  /** The slot, and when it starts and ends by the clock of this process. */
  private async reserve({ cost = 1, waitMs = 30_000, widthMs = 250 }: SlotOptions) {
    const deadline = performance.now() + waitMs;
    for (;;) {
      const asked = performance.now();
      const wait_ms = Math.floor(Math.max(0, Math.min(deadline - asked, LONGEST_POLL_MS)));
      const body = { cost, width_ms: widthMs, wait_ms };
      try {
        const options = { body, retries: 0, timeoutMs: wait_ms + ANSWER_MS };
        const slot = (await this.transport.send("POST", this.route, this.parts, options)).body as ReservedSlot;
        const answered = performance.now();
        const way = Math.max(0, answered - asked - slot.took_ms);
        // The latest instant at which it may start, and the earliest at which it may end.
        return { slot, starts: answered + slot.starts_in_ms, ends: answered - way + slot.ends_in_ms };
      } catch (error) {
        const pause = error instanceof Unavailable ? (error.retryAfterMs ?? PAUSE_MS) : Number.POSITIVE_INFINITY;
        if (performance.now() + pause > deadline) throw error;
        await this.sleep(pause);
      }
    }
  }

  private async giveBack(slot: ReservedSlot): Promise<void> {
    const parts = { id: slot.limit_group, rid: slot.id };
    try {
      await this.transport.send("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", parts, { retries: 0 });
    } catch {
      // It stays taken, which only delays others.
    }
  }
}
