package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Date;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;

/**
 * Java values as {"type": …, "value": …}: plain JSON would lose whether 42 is an Integer or a Long,
 * on which the encoded bytes depend.
 */
final class Values {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    private Values() {
    }

    static Object read(JsonNode node) {
        JsonNode value = node.path("value");
        String type = node.path("type").asText();
        return switch (type) {
            case "string" -> value.asText();
            case "long" -> value.asLong();
            case "int" -> value.asInt();
            case "bool" -> value.asBoolean();
            case "double" -> value.asDouble();
            case "date" -> new Date(value.asLong());
            case "bytes" -> HexFormat.of().parseHex(value.asText());
            case "order" -> order(value);
            case "map" -> map(value);
            case "list" -> list(value);
            default -> throw new IllegalArgumentException("unknown type '" + type + "'");
        };
    }

    private static Order order(JsonNode value) {
        Order order = new Order();
        order.id = value.path("id").asLong();
        order.amount = value.path("amount").asDouble();
        order.note = value.hasNonNull("note") ? value.get("note").asText() : null;
        order.created = value.hasNonNull("created") ? new Date(value.get("created").asLong()) : null;
        if (value.hasNonNull("tags")) {
            order.tags = new ArrayList<>();
            value.get("tags").forEach(tag -> order.tags.add(tag.asText()));
        }
        return order;
    }

    private static Map<String, Object> map(JsonNode value) {
        Map<String, Object> map = new HashMap<>();
        value.fields().forEachRemaining(entry -> map.put(entry.getKey(), read(entry.getValue())));
        return map;
    }

    private static List<Object> list(JsonNode value) {
        List<Object> list = new ArrayList<>();
        value.forEach(item -> list.add(read(item)));
        return list;
    }

    static ArrayNode writeAll(Collection<?> values) {
        ArrayNode array = JSON.arrayNode();
        values.forEach(value -> array.add(write(value)));
        return array;
    }

    /** Other types are written as their class and text, so that a test can show them. */
    static JsonNode write(Object value) {
        if (value == null) {
            return JSON.nullNode();
        } else if (value instanceof String text) {
            return tagged("string", JSON.textNode(text));
        } else if (value instanceof Long number) {
            return tagged("long", JSON.numberNode(number));
        } else if (value instanceof Integer number) {
            return tagged("int", JSON.numberNode(number));
        } else if (value instanceof Boolean truth) {
            return tagged("bool", JSON.booleanNode(truth));
        } else if (value instanceof Double number) {
            return tagged("double", JSON.numberNode(number));
        } else if (value instanceof Date date) {
            return tagged("date", JSON.numberNode(date.getTime()));
        } else if (value instanceof byte[] bytes) {
            return tagged("bytes", JSON.textNode(HexFormat.of().formatHex(bytes)));
        } else if (value instanceof Order order) {
            return tagged("order", fields(order));
        } else if (value instanceof Map<?, ?> map) {
            ObjectNode entries = JSON.objectNode();
            map.forEach((key, item) -> entries.set(String.valueOf(key), write(item)));
            return tagged("map", entries);
        } else if (value instanceof List<?> list) {
            return tagged("list", writeAll(list));
        }
        return tagged("other", JSON.textNode(value.getClass().getName() + " " + value));
    }

    private static ObjectNode tagged(String type, JsonNode value) {
        ObjectNode node = JSON.objectNode();
        node.put("type", type);
        node.set("value", value);
        return node;
    }

    private static ObjectNode fields(Order order) {
        ObjectNode fields = JSON.objectNode();
        fields.put("id", order.id);
        fields.put("amount", order.amount);
        fields.put("note", order.note);
        fields.put("created", order.created == null ? null : order.created.getTime());
        if (order.tags == null) {
            fields.putNull("tags");
        } else {
            ArrayNode tags = fields.putArray("tags");
            order.tags.forEach(tags::add);
        }
        return fields;
    }
}
