/** Recorder for one voice message at a time, in a format that this browser supports. */
import { t } from "/shared/language.js";

const KINDS = ["audio/webm;codecs=opus", "audio/ogg;codecs=opus", "audio/mp4"];
/** Enough for speech; 10 MB are 55 minutes. */
const BITS_PER_SECOND = 24_000;
const PIECE_MS = 250;
const REFUSALS = {
  NotAllowedError: t("mic.blocked"),
  NotFoundError: t("mic.none"),
  NotReadableError: t("mic.used"),
};

export class Recorder {
  #recorder = null;
  #pieces = [];
  #full = false;

  /**
   * @param {(seconds: number) => void} onProgress called regularly with the duration
   * @param {(blob: Blob, full: boolean) => void} onRecorded called with the recording; `full` if the size limit ended it
   */
  constructor(onProgress, onRecorded) {
    this.onProgress = onProgress;
    this.onRecorded = onRecorded;
  }

  get isRecording() {
    return this.#recorder !== null;
  }

  /** Start. @param {number} most maximum bytes @returns {Promise<string>} the error, or "" */
  async start(most) {
    if (!navigator.mediaDevices || !window.MediaRecorder) return t("mic.secure");
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch (error) {
      return REFUSALS[error.name] ?? t("mic.failed", { reason: error.message });
    }
    const mimeType = KINDS.find((kind) => MediaRecorder.isTypeSupported(kind));
    const recorder = new MediaRecorder(stream, { mimeType, audioBitsPerSecond: BITS_PER_SECOND });
    this.#recorder = recorder;
    this.#pieces = [];
    this.#full = false;
    const begun = performance.now();
    recorder.addEventListener("dataavailable", ({ data }) => {
      this.#take(data, most);
      this.onProgress((performance.now() - begun) / 1000);
    });
    recorder.addEventListener("stop", () => this.#finish(stream));
    recorder.start(PIECE_MS);
    return "";
  }

  stop() {
    if (this.#recorder?.state === "recording") this.#recorder.stop();
  }

  #take(piece, most) {
    this.#pieces.push(piece);
    this.#full ||= size(this.#pieces) + piece.size > most;
    if (this.#full) this.stop();
  }

  #finish(stream) {
    for (const track of stream.getTracks()) track.stop();
    const type = this.#recorder.mimeType;
    this.#recorder = null;
    this.onRecorded(new Blob(this.#pieces, { type }), this.#full);
  }
}

function size(pieces) {
  return pieces.reduce((sum, piece) => sum + piece.size, 0);
}
