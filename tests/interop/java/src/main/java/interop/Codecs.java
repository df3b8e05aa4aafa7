package interop;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.JsonJacksonCodec;
import org.redisson.codec.Kryo5Codec;
import org.redisson.codec.TypedJsonJacksonCodec;

/** Codecs by their names in the protocol. */
final class Codecs {
    /** The client's default, which depends on the version. */
    static final String DEFAULT = "default";

    private static final Map<String, Class<?>> TYPED = Map.of(
            "order", Order.class,
            "map", HashMap.class,
            "string", String.class,
            "long", Long.class);

    private final Map<String, Codec> byName = new ConcurrentHashMap<>();

    Codec named(String name) {
        return byName.computeIfAbsent(name, Codecs::make);
    }

    private static Codec make(String name) {
        return switch (name) {
            case "string" -> StringCodec.INSTANCE;
            case "bytes" -> ByteArrayCodec.INSTANCE;
            case "jackson" -> new JsonJacksonCodec();
            case "kryo5" -> new Kryo5Codec();
            default -> typed(name);
        };
    }

    private static Codec typed(String name) {
        Class<?> type = name.startsWith("typed-json:") ? TYPED.get(name.substring(11)) : null;
        if (type == null) {
            throw new IllegalArgumentException("unknown codec " + name);
        }
        return new TypedJsonJacksonCodec(type);
    }
}
