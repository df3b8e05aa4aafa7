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

/** The codecs by the names that the protocol has for them. */
final class Codecs {
    /** The client's own choice, which differs from version to version. */
    static final String DEFAULT = "default";

    private static final Map<String, Class<?>> TYPED = Map.of(
            "order", Order.class,
            "map", HashMap.class,
            "string", String.class,
            "long", Long.class);

    private final Map<String, Codec> made = new ConcurrentHashMap<>();

    Codec named(String name) {
        return made.computeIfAbsent(name, Codecs::make);
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
            throw new IllegalArgumentException("no codec is called " + name);
        }
        return new TypedJsonJacksonCodec(type);
    }
}
