// A producer, or a member of a group, of Apache Kafka's own client. See other_clients.py for its arguments.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

public class Live {
    static final String PACKAGE = "org.apache.kafka.common.serialization.String";
    static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    static final PrintStream OUTPUT = System.out;

    /** Set when the standard input has a line or ends. */
    static volatile boolean isStopping = false;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        if (arguments[2].equals("feed")) {
            settings.put("metadata.max.age.ms", arguments[3]);
            feed(settings, arguments[1]);
            return;
        }
        settings.put("group.id", arguments[3]);
        settings.put("metadata.max.age.ms", arguments[4]);
        settings.put("key.deserializer", PACKAGE + "Deserializer");
        settings.put("value.deserializer", PACKAGE + "Deserializer");
        Thread watching = new Thread(Live::awaitInput);
        watching.setDaemon(true);
        watching.start();
        if (arguments[5].equals("share")) {
            share(settings, arguments[1]);
        } else {
            settings.put("group.protocol", arguments[5]);
            follow(settings, arguments[1]);
        }
    }

    static void awaitInput() {
        try {
            INPUT.readLine();
        } catch (java.io.IOException closed) {
            // It has ended.
        }
        isStopping = true;
    }

    static void feed(Properties settings, String topic) throws Exception {
        settings.put("enable.idempotence", "true");
        settings.put("linger.ms", "5");
        settings.put("key.serializer", PACKAGE + "Serializer");
        settings.put("value.serializer", PACKAGE + "Serializer");
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (String line = INPUT.readLine(); line != null; line = INPUT.readLine()) {
                if (line.equals("flush")) {
                    producer.flush();
                    raise(failure.get());
                    OUTPUT.println("flushed");
                } else if (line.equals("partitions")) {
                    OUTPUT.println(producer.partitionsFor(topic).size());
                } else {
                    String[] record = line.split(" ");
                    producer.send(new ProducerRecord<>(topic, record[0], record[1]), (where, error) -> {
                        if (error != null) failure.compareAndSet(null, error);
                    });
                }
            }
            producer.flush();
        }
        raise(failure.get());
    }

    /** Failures come from another thread: the launcher of source files cannot show one without a frame of its own. */
    static void raise(Exception failure) {
        if (failure != null) throw new IllegalStateException(failure);
    }

    static void follow(Properties settings, String topic) throws Exception {
        settings.put("auto.offset.reset", "earliest");
        settings.put("auto.commit.interval.ms", "200");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (!isStopping) print(consumer.poll(Duration.ofMillis(200)));
        }
    }

    /** Records that were polled are accepted by the next poll. */
    static void share(Properties settings, String topic) throws Exception {
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (!isStopping) print(consumer.poll(Duration.ofMillis(200)));
        }
    }

    static void print(ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> record : records) OUTPUT.println(record.value());
        OUTPUT.flush();
    }
}
