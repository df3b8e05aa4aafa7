package interop;

/** This version of Redisson does not have what was asked for. */
public class Unsupported extends Exception {
    private static final long serialVersionUID = 1L;

    public Unsupported(String what, Throwable cause) {
        super(what + ": " + cause, cause);
    }
}
