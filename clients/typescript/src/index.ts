/** Client of Weir, which delivers webhooks within exact rate limits. */

export { type BatchResult, Pages, type Options, Weir } from "./client.js";
export * from "./errors.js";
export { Limit, type SlotOptions } from "./slots.js";
export type * from "./types.js";
export { InvalidWebhook, type VerifyOptions, verifyWebhook } from "./webhooks.js";
