package io.github.dqjobs;

import java.util.List;

/** The server has refused a request, or no server has answered. */
public class DelayQueueException extends RuntimeException {
    /**
     * Such as {@code not found}, {@code conflict} or {@code invalid input}; {@code unavailable} if no server is reached,
     * {@code outcome unknown} if its answer is lost.
     */
    public final String kind;

    /** What to do about it, or null. */
    public final String remedy;

    DelayQueueException(String kind, String detail, String remedy) {
        super(kind + ": " + detail + (remedy == null ? "" : " (" + remedy + ")"));
        this.kind = kind;
        this.remedy = remedy;
    }

    /** Whether the server is away. */
    boolean isTemporary() {
        return List.of("unavailable", "closed", "outcome unknown").contains(kind);
    }
}
