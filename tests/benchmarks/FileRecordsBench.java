import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;

/**
 * Kafka's own iteration over segment files: checksums checked, sizes added up, nothing copied.
 * One pass for each line of standard input, so that the caller can alternate it with others.
 */
public class FileRecordsBench {
    public static void main(String[] files) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        while (asked.readLine() != null) {
            System.out.println(pass(files));
        }
    }

    private static String pass(String[] files) throws Exception {
        long records = 0, offsets = 0, keys = 0, values = 0;
        for (String file : files) {
            try (FileRecords log = FileRecords.open(new File(file), false)) {
                for (RecordBatch batch : log.batches()) {
                    batch.ensureValid();
                    for (Record record : batch) {
                        records++;
                        offsets += record.offset();
                        keys += Math.max(record.keySize(), 0);
                        values += Math.max(record.valueSize(), 0);
                    }
                }
            }
        }
        return records + " " + offsets + " " + keys + " " + values;
    }
}
