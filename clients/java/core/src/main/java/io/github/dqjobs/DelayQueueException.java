package io.github.dqjobs;

/** The server has refused a request, or no server has answered. */
public class DelayQueueException extends RuntimeException {
    /** Such as {@code not-found}, {@code invalid-input}, {@code forbidden}; {@code unreachable} without an answer. */
    public final String kind;

    /** What to do about it, or null. */
    public final String remedy;

    final int status;

    DelayQueueException(int status, String kind, String detail, String remedy) {
        super(kind + ": " + detail + (remedy == null ? "" : " (" + remedy + ")"));
        this.status = status;
        this.kind = kind;
        this.remedy = remedy;
    }
}
