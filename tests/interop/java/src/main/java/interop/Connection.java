package interop;

import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/** Command line: {@code HOST:PORT [PREFIX]}. The prefix is that of a NameMapper. */
final class Connection {
    private Connection() {
    }

    static RedissonClient open(String[] arguments) throws ReflectiveOperationException {
        Config config = new Config();
        SingleServerConfig server = config.useSingleServer()
                .setAddress("redis://" + arguments[0])
                // Few idle connections, for a fast start; enough for many blocked takes at once.
                .setConnectionMinimumIdleSize(1)
                // Longer than a busy machine takes: commands that have no reply in time are sent again.
                .setTimeout(60_000)
                .setConnectTimeout(60_000)
                .setConnectionPoolSize(64)
                .setSubscriptionConnectionMinimumIdleSize(1);
        if (arguments.length > 1) {
            setPrefix(server, arguments[1]);
        }
        return Redisson.create(config);
    }

    /** By reflection, because NameMapper moved to another package in 4.0. */
    private static void setPrefix(SingleServerConfig server, String prefix) throws ReflectiveOperationException {
        Class<?> type = SingleServerConfig.class.getMethod("getNameMapper").getReturnType();
        Object mapper = Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, given) ->
                switch (method.getName()) {
                    case "map" -> prefix + given[0];
                    case "unmap" -> ((String) given[0]).substring(prefix.length());
                    default -> method.invoke(prefix, given);
                });
        for (Method method : SingleServerConfig.class.getMethods()) {
            if (method.getName().equals("setNameMapper")) {
                method.invoke(server, mapper);
                return;
            }
        }
        throw new NoSuchMethodException("setNameMapper");
    }

    /** From the name of the jar, since not every version has it in the manifest. */
    static String version() {
        String jar = RedissonClient.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        return jar.substring(jar.lastIndexOf("redisson-") + 9, jar.lastIndexOf(".jar"));
    }
}
