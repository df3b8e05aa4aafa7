package interop;

import java.io.Serializable;
import java.util.Date;
import java.util.List;

/** A plain object as applications put into their queues. */
public class Order implements Serializable {
    private static final long serialVersionUID = 1L;

    public long id;
    public double amount;
    public String note;
    public Date created;
    public List<String> tags;
}
