package sigma.test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.dubbo.config.ApplicationConfig;
import org.apache.dubbo.config.ProtocolConfig;
import org.apache.dubbo.config.RegistryConfig;
import org.apache.dubbo.config.ServiceConfig;

/** A provider at a port, whose values are in the serialization that it is told. */
public class Provider {
    public interface Greetings {
        Map<String, Object> greet(Map<String, Object> request);

        Map<String, Object> fail(Map<String, Object> request);

        Map<String, Object> nothing(Map<String, Object> request);

        Map<String, Object> large(Map<String, Object> request);
    }

    public interface Calculator {
        long sum(Long a, int b);

        String join(List<String> parts, Map<String, Integer> counts);

        String nothing();

        int fail(String why);
    }

    public static class Greeter implements Greetings {
        public Map<String, Object> greet(Map<String, Object> request) {
            byte[] body = (byte[]) request.get("body");
            Map<String, Object> answer = new HashMap<>();
            answer.put("status", "201");
            answer.put("X-Name", request.get("X-Name"));
            answer.put("X-Length", body == null ? -1 : body.length);
            answer.put("X-Keys", new ArrayList<>(List.of("a", "b")));
            answer.put("body", body == null ? "nobody \ud83d\ude00" : body);
            return answer;
        }

        public Map<String, Object> fail(Map<String, Object> request) {
            throw new IllegalStateException("thrown by the method");
        }

        public Map<String, Object> nothing(Map<String, Object> request) {
            return null;
        }

        public Map<String, Object> large(Map<String, Object> request) {
            Map<String, Object> answer = new TreeMap<>();
            answer.put("status", 200);
            answer.put("body", "\u00e9".repeat(1_000_000));
            return answer;
        }
    }

    public static class Sums implements Calculator {
        public long sum(Long a, int b) {
            return a + b;
        }

        public String join(List<String> parts, Map<String, Integer> counts) {
            return String.join("\n", parts) + counts;
        }

        public String nothing() {
            return null;
        }

        public int fail(String why) {
            throw new IllegalArgumentException(why);
        }
    }

    private static <T> void serve(Class<T> type, T service, ProtocolConfig protocol) {
        ServiceConfig<T> config = new ServiceConfig<>();
        config.setApplication(application());
        config.setRegistry(new RegistryConfig("N/A"));
        config.setProtocol(protocol);
        config.setInterface(type);
        config.setVersion("1.0.0");
        config.setRef(service);
        config.export();
    }

    private static ApplicationConfig application() {
        ApplicationConfig application = new ApplicationConfig("provider");
        application.setQosEnable(false);
        return application;
    }

    public static void main(String[] arguments) throws Exception {
        ProtocolConfig protocol = new ProtocolConfig("dubbo", Integer.parseInt(arguments[0]));
        protocol.setSerialization(arguments[1]);
        if (arguments[1].equals("fastjson")) {
            serve(Calculator.class, new Sums(), protocol);
        } else {
            serve(Greetings.class, new Greeter(), protocol);
        }
        Thread.currentThread().join();
    }
}
