import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import scala.Option;
import scala.Tuple2;
import scala.Tuple3;
import scala.util.Random$;
import scienceworld.environments.EnvironmentMaker$;
import scienceworld.objects.agent.Agent;
import scienceworld.runtime.AgentInterface;
import scienceworld.runtime.pythonapi.PythonInterface;
import scienceworld.struct.EnvObject;
import scienceworld.tasks.Task;
import scienceworld.tasks.TaskMaker1;
import scienceworld.tasks.specifictasks.*;
import util.UniqueIdentifier$;

/**
 * Many ScienceWorld sessions in one process, one request at a time over standard input and output.
 *
 * The simulator keeps two things in global variables, Scala's random generator and the counter of object numbers. Here they belong
 * to a session: they are put back before each of its requests and taken out after it. So a session is exactly what it would be
 * alone in a process, whatever the others do. The process must run with a constant identity hash (-XX:hashCode=2), since the
 * simulator walks through hash sets of its objects.
 *
 * A request is an int (bytes that follow), a char (the operation) and its arguments; a reply is an int, a boolean (served or
 * failed) and the results, or the text of the fault. Strings are UTF-8 with an int (bytes) before them. See `perform`.
 */
public final class Simulator {
    private static final String UNKNOWN =
        "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. ";

    /** Episodes begun while nobody asks; a reset then takes a sixth of the first one's time. */
    private static final int PRACTICE = 240;

    /** What a group of tasks needs to be registered alone: how many random draws and object numbers those before it take. */
    private static final class Group {
        final Consumer<TaskMaker1> register;
        final int draws;
        final long numbers;

        Group(Consumer<TaskMaker1> register, int draws, long numbers) {
            this.register = register;
            this.draws = draws;
            this.numbers = numbers;
        }
    }

    private static final class Session {
        AgentInterface world;
        String observation;
        double score;
        boolean completed;
        long random;
        long number;
    }

    private final AtomicLong random;
    private final Map<Integer, Session> sessions = new HashMap<>();
    private final Map<String, Group> groups = new HashMap<>();
    private final TaskMaker1 maker;
    private final long numbers;

    private Simulator() throws ReflectiveOperationException {
        Field seed = Random.class.getDeclaredField("seed");
        seed.setAccessible(true);
        random = (AtomicLong) seed.get(Random$.MODULE$.self());

        Random$.MODULE$.setSeed(0);
        UniqueIdentifier$.MODULE$.reset();
        maker = new TaskMaker1();
        long expected = random.get();
        numbers = UniqueIdentifier$.MODULE$.count();

        Random$.MODULE$.setSeed(0);
        UniqueIdentifier$.MODULE$.reset();
        int draws = 0;
        long state = random.get();
        for (Consumer<TaskMaker1> register : groupsInOrder()) {
            Group group = new Group(register, draws, UniqueIdentifier$.MODULE$.count());
            TaskMaker1 one = new TaskMaker1();
            one.tasks().clear();
            setRandom(state);
            UniqueIdentifier$.MODULE$.count_$eq(group.numbers);
            register.accept(one);
            for (String name : one.getTaskList()) {
                groups.put(name, group);
            }
            for (; state != random.get(); draws++) {
                state = afterDraw(state);
            }
        }
        if (state != expected || UniqueIdentifier$.MODULE$.count() != numbers || groups.size() != maker.getTaskList().length) {
            throw new IllegalStateException("this is not the version of scienceworld that the groups were written for");
        }
    }

    public static void main(String[] arguments) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(FileDescriptor.in)));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)));
        System.setOut(new Silence());
        LinkedBlockingQueue<byte[]> requests = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> {
            try {
                while (true) {
                    byte[] request = new byte[in.readInt()];
                    in.readFully(request);
                    requests.add(request);
                }
            } catch (IOException gone) { // whoever started this process is gone, or closed the pipe to end it
                Runtime.getRuntime().halt(0);
            }
        });
        reader.setDaemon(true);
        reader.start();

        giveEnvObjectItsHashCode();
        Simulator simulator = new Simulator();
        out.writeInt(1); // a reply that nobody asked for says that the process is ready
        out.writeBoolean(true);
        out.flush();
        for (int practised = 0; true; ) {
            byte[] asked = requests.poll();
            if (asked == null && practised < PRACTICE) {
                simulator.practise(practised++);
                continue;
            }
            DataInputStream request = new DataInputStream(new ByteArrayInputStream(asked != null ? asked : requests.take()));
            ByteArrayOutputStream reply = new ByteArrayOutputStream();
            DataOutputStream results = new DataOutputStream(reply);
            try {
                results.writeBoolean(true);
                simulator.perform(request, results);
            } catch (Exception | StackOverflowError fault) {
                reply.reset();
                results.writeBoolean(false);
                write(results, fault.toString());
            }
            out.writeInt(reply.size());
            reply.writeTo(out);
            out.flush();
        }
    }

    /** Plays a moment of some task, so that the virtual machine compiles what the first sessions would else wait for. */
    private void practise(int number) throws IOException {
        String[] tasks = maker.getTaskList();
        Session session = begin(tasks[number % tasks.length], 0);
        step(session, "inventory");
        step(session, "look in cupboard");
    }

    /** The groups of tasks, in the order in which TaskMaker1's constructor registers them. */
    private static List<Consumer<TaskMaker1>> groupsInOrder() {
        return List.of(
            TaskChangeOfState$.MODULE$::registerTasks,
            TaskElectricCircuit$.MODULE$::registerTasks,
            TaskElectricalConductivity$.MODULE$::registerTasks,
            TaskElectricalConductivity2$.MODULE$::registerTasks,
            TaskFindLivingNonLiving$.MODULE$::registerTasks,
            TaskGrowPlant$.MODULE$::registerTasks,
            TaskChemistryMix$.MODULE$::registerTasks,
            TaskChemistryMixPaint$.MODULE$::registerTasks,
            TaskLifeSpan$.MODULE$::registerTasks,
            TaskIdentifyLifeStages1$.MODULE$::registerTasks,
            TaskIdentifyLifeStages2$.MODULE$::registerTasks,
            TaskInclinedPlane1$.MODULE$::registerTasks,
            TaskInclinedPlane2$.MODULE$::registerTasks,
            TaskInclinedPlane3$.MODULE$::registerTasks,
            TaskMendelianGenetics1$.MODULE$::registerTasks,
            TaskMendelianGenetics2$.MODULE$::registerTasks,
            TaskUseInstrumentThermometer$.MODULE$::registerTasks,
            TaskUseInstrumentThermometer2$.MODULE$::registerTasks,
            TaskUseInstrumentThermometer3$.MODULE$::registerTasks);
    }

    private void perform(DataInputStream request, DataOutputStream results) throws IOException {
        char operation = request.readChar();
        if (operation == 'b') { // begin: session, task, variation -> description, observation, score, completed
            int id = request.readInt();
            Session session = begin(read(request), request.readInt());
            sessions.put(id, session);
            write(results, session.world.getTaskDescription());
            writeState(results, session);
        } else if (operation == 's') { // step: session, action -> observation, score, completed
            Session session = session(request);
            step(session, read(request));
            writeState(results, session);
        } else if (operation == 'h') { // hints: session -> possible actions, possible objects, progress
            Session session = session(request);
            enter(session); // and not left: the names of objects are drawn, and to ask for hints changes nothing in the episode
            write(results, String.join("\n", session.world.getPossibleActions()));
            write(results, String.join("\n", session.world.getPossibleObjects()));
            write(results, session.world.getGoalProgressStr());
        } else if (operation == 'e') { // end: session ->
            sessions.remove(request.readInt());
        } else if (operation == 'g') { // gold: task, variation -> number of actions, actions
            List<String> actions = new Expert(read(request), request.readInt()).getActionHistory();
            results.writeInt(actions.size());
            for (String action : actions) {
                write(results, action);
            }
        } else {
            throw new IOException("there is no operation " + operation);
        }
    }

    private Session begin(String task, int variation) throws IOException {
        Session session = load(task, variation);
        step(session, "look around");
        return session;
    }

    /** What PythonInterface.load does, but registers only the group of tasks that is needed, since that takes most of the time. */
    private Session load(String task, int variation) throws IOException {
        Group group = groups.get(task);
        if (group == null) {
            throw new IOException("there is no task " + task);
        }
        Random$.MODULE$.setSeed(variation);
        long state = random.get();
        for (int draw = 0; draw < group.draws; draw++) {
            state = afterDraw(state);
        }
        setRandom(state);
        UniqueIdentifier$.MODULE$.count_$eq(group.numbers);
        group.register.accept(maker);

        Random$.MODULE$.setSeed(variation);
        UniqueIdentifier$.MODULE$.count_$eq(numbers);
        Tuple2<EnvObject, Agent> made = EnvironmentMaker$.MODULE$.mkKitchenEnvironment(variation);
        Tuple2<Option<Task>, String> set = maker.doTaskSetup(task, variation, made._1(), made._2());
        if (set._1().isEmpty()) {
            throw new IOException(set._2());
        }
        Session session = new Session();
        session.world = new AgentInterface(made._1(), made._2(), set._1().get(), "");
        leave(session);
        return session;
    }

    /** What PythonInterface.step does, without the records and the printing. */
    private void step(Session session, String action) throws IOException {
        String word = action.trim().toLowerCase();
        enter(session);
        if (word.equals("help")) {
            session.observation = "Possible actions: \n\t" + String.join("\n\t", session.world.getPossibleActions());
        } else if (word.equals("objects")) { // which draws among their names
            session.observation = "Possible object references: \n\t" + String.join("\n\t", session.world.getPossibleObjects());
        } else if (word.equals("task")) {
            session.observation = "Task description:\n" + session.world.getTaskDescription();
        } else {
            Tuple3<String, Object, Object> result = session.world.step(action);
            if (session.world.isInErrorState()) {
                throw new IOException(session.world.getErrorStateMessage());
            }
            session.observation = result._1().isEmpty() ? UNKNOWN : result._1();
            session.score = (Double) result._2();
            session.completed = (Boolean) result._3();
        }
        leave(session);
    }

    /** Runs the package's own expert in a session and keeps what it does. */
    private final class Expert extends PythonInterface {
        private final Session session;

        Expert(String task, int variation) throws IOException {
            session = begin(task, variation);
            agentInterface_$eq(Option.apply(session.world));
            agent_$eq(Option.apply(session.world.agent()));
            Random$.MODULE$.setSeed(variation);
            maker.createGoldActions(task, variation, this);
        }

        @Override
        public String step(String action) {
            String look = freeActionLook();
            String inventory = freeActionInventory();
            long planning = random.get(); // the expert's own draws are none of the session's
            try {
                Simulator.this.step(session, action);
            } catch (IOException fault) {
                throw new UncheckedIOException(fault);
            }
            setRandom(planning);
            currentHistory().addStep(action, new Tuple3<>(session.observation, session.score, session.completed), look, inventory);
            return session.observation;
        }
    }

    private void enter(Session session) {
        setRandom(session.random);
        UniqueIdentifier$.MODULE$.count_$eq(session.number);
    }

    private void leave(Session session) {
        session.random = random.get();
        session.number = UniqueIdentifier$.MODULE$.count();
    }

    private static void setRandom(long state) {
        Random$.MODULE$.setSeed(state ^ 0x5DEECE66DL); // java.util.Random scrambles a seed in this way
    }

    private static long afterDraw(long state) {
        return state * 0x5DEECE66DL + 0xBL & (1L << 48) - 1;
    }

    private Session session(DataInputStream request) throws IOException {
        int id = request.readInt();
        Session session = sessions.get(id);
        if (session == null) {
            throw new IOException("there is no session " + id);
        }
        return session;
    }

    private static String read(DataInputStream request) throws IOException {
        return new String(request.readNBytes(request.readInt()), StandardCharsets.UTF_8);
    }

    private static void write(DataOutputStream results, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        results.writeInt(bytes.length);
        results.write(bytes);
    }

    private static void writeState(DataOutputStream results, Session session) throws IOException {
        write(results, session.observation);
        results.writeDouble(session.score);
        results.writeBoolean(session.completed);
    }

    /**
     * The package's EnvObject says that objects with the same uuid are equal, but leaves hashCode as it is. With a constant identity
     * hash its sets would then be long chains, which cost a third of a step and two fifths of a reset. So the class is loaded with
     * `return (int) uuid()` in it.
     */
    public static void giveEnvObjectItsHashCode() throws IOException, ReflectiveOperationException {
        byte[] original;
        try (InputStream file = Simulator.class.getResourceAsStream("/scienceworld/struct/EnvObject.class")) {
            original = file.readAllBytes();
        }
        ByteBuffer type = ByteBuffer.wrap(original); // the names are those of the class file format, Java's specification, chapter 4
        int constants = type.getShort(8);
        type.position(10);
        for (int index = 1; index < constants; index++) {
            int tag = type.get();
            if (tag == 5 || tag == 6) { // long and double count twice
                index++;
            }
            skip(type, tag == 1 ? type.getShort() : tag == 5 || tag == 6 ? 8 : tag == 7 || tag == 8 || tag == 16 ? 2 : tag == 15 ? 3 : 4);
        }
        int constantsEnd = type.position();
        int thisClass = type.getShort(constantsEnd + 2);
        skip(type, 6);
        skip(type, 2 * type.getShort()); // interfaces
        skipMembers(type); // fields
        int methodsAt = type.position();
        int methods = type.getShort(methodsAt);
        skipMembers(type);
        int methodsEnd = type.position();

        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream patched = new DataOutputStream(bytes);
        patched.write(original, 0, 8);
        patched.writeShort(constants + 7);
        patched.write(original, 10, constantsEnd - 10);
        for (String text : List.of("hashCode", "()I", "Code", "uuid", "()J")) {
            patched.writeByte(1);
            patched.writeUTF(text);
        }
        patched.writeByte(12); // name and type
        patched.writeShort(constants + 3);
        patched.writeShort(constants + 4);
        patched.writeByte(10); // method
        patched.writeShort(thisClass);
        patched.writeShort(constants + 5);
        patched.write(original, constantsEnd, methodsAt - constantsEnd);
        patched.writeShort(methods + 1);
        patched.write(original, methodsAt + 2, methodsEnd - methodsAt - 2);
        patched.writeShort(1); // public
        patched.writeShort(constants);
        patched.writeShort(constants + 1);
        patched.writeShort(1); // attribute
        patched.writeShort(constants + 2);
        patched.writeInt(18);
        patched.writeShort(2); // stack
        patched.writeShort(1); // locals
        patched.writeInt(6);
        patched.writeByte(0x2a); // aload_0
        patched.writeByte(0xb6); // invokevirtual
        patched.writeShort(constants + 6);
        patched.writeByte(0x88); // l2i
        patched.writeByte(0xac); // ireturn
        patched.writeShort(0);
        patched.writeShort(0);
        patched.write(original, methodsEnd, original.length - methodsEnd);

        ClassLoader loader = ClassLoader.getSystemClassLoader();
        Class<?> neighbour = Class.forName("scienceworld.struct.EnvObject$", false, loader);
        MethodHandles.privateLookupIn(neighbour, MethodHandles.lookup()).defineClass(bytes.toByteArray());
    }

    private static void skipMembers(ByteBuffer type) {
        for (int members = type.getShort(); members > 0; members--) {
            skip(type, 6);
            for (int attributes = type.getShort(); attributes > 0; attributes--) {
                skip(type, 2);
                skip(type, type.getInt());
            }
        }
    }

    private static void skip(ByteBuffer type, int bytes) {
        type.position(type.position() + bytes);
    }

    /** Where the simulator's printing goes. */
    private static final class Silence extends PrintStream {
        Silence() {
            super(OutputStream.nullOutputStream());
        }

        @Override
        public void println(Object thing) {}

        @Override
        public void print(String text) {}
    }
}
