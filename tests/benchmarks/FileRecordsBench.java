import java.io.File;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/** Kafka's own iteration over segment files: checksums checked, sizes added up, nothing copied. */
public class FileRecordsBench {
    public static void main(String[] files) throws Exception {
        int rounds = Integer.parseInt(System.getProperty("rounds", "7"));
        for (int round = 0; round < rounds; round++) {
            long records = 0, bytes = 0, offsets = 0;
            long start = System.nanoTime();
            for (String file : files) {
                try (FileRecords log = FileRecords.open(new File(file), false)) {
                    for (RecordBatch batch : log.batches()) {
                        batch.ensureValid();
                        for (Record record : batch) {
                            records++;
                            offsets += record.offset();
                            bytes += Math.max(record.valueSize(), 0);
                        }
                    }
                }
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.println(seconds + " " + records + " " + offsets + " " + bytes);
        }
    }
}
