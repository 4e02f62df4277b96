// A heap of small objects that is filled, read in order, partly replaced, and read again.
import java.util.ArrayList;

public class Heap {
    static final class Entry {
        final long key, value;
        final byte[] bytes;

        Entry(long key) {
            this.key = key;
            value = key * 31;
            bytes = new byte[200];
            bytes[(int) (key % 200)] = (byte) key;
        }

        void verify(long wanted) {
            if (key != wanted || value != wanted * 31 || bytes[(int) (wanted % 200)] != (byte) wanted)
                throw new Error("entry " + wanted + " is " + key);
        }
    }

    public static void main(String[] arguments) {
        int entries = Integer.parseInt(arguments[0]);
        ArrayList<Entry> all = new ArrayList<>();
        for (int i = 0; i < entries; i++)
            all.add(new Entry(i));
        long sum = 0;
        for (int round = 0; round < 3; round++)
            for (int i = 0; i < entries; i++) {
                all.get(i).verify(i);
                sum += all.get(i).value;
                if (i % 5 == round)
                    all.set(i, new Entry(i));
            }
        // A fault of the program's own.
        String nothing = entries < 0 ? "" : null;
        try {
            sum += nothing.length();
        } catch (NullPointerException e) {
            sum++;
        }
        System.out.println(entries + " entries, sum " + sum);
    }
}
