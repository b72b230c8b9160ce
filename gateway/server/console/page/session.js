/** Who uses the console. */
import { ApiError, read } from "./api.js";

/** @returns {Promise<{account: string, role: "admin" | "viewer"} | null>} null without a valid login */
export async function readSession() {
  try {
    await read("/api/status");
    return { account: "", role: "admin" };
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

/** End this login. */
export async function signOut() {}
