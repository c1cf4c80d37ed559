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
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.StringJoiner;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import scala.Option;
import scala.Tuple2;
import scala.Tuple3;
import scala.util.Random$;
import scienceworld.actions.Action;
import scienceworld.actions.ActionDisconnectElectrical;
import scienceworld.actions.ActionDisconnectElectrical$;
import scienceworld.environments.EnvironmentMaker$;
import scienceworld.input.ActionHandler;
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
 * The simulator has two global variables: Scala's random generator and the counter of object numbers. This class restores a
 * session's values before each of its requests and saves them afterwards. A session therefore behaves as if it were alone in its
 * process. The process must run with a constant identity hash (-XX:hashCode=2), because the simulator iterates over hash sets of
 * its objects.
 *
 * A request is an int (the number of bytes that follow), a char (the operation) and its arguments. A reply is an int, a boolean
 * (success or failure) and the results or the error message. Strings are UTF-8, preceded by an int (the number of bytes). See
 * `perform`.
 */
public final class Simulator {
    private static final String UNKNOWN =
        "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. ";

    /** Episodes to start while idle. A reset then takes a sixth of its initial time. This takes 8 s of CPU, which tests save. */
    private static final int PRACTICE = Integer.getInteger("simulator.practice", 400);

    /** Milliseconds without a request after which the process is idle. */
    private static final int IDLE_MS = 500;

    /** State before the registration of a group of tasks: the random draws and object numbers that earlier groups consume. */
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
        JudgedActions actions;
        String observation;
        double score;
        boolean completed;
        boolean refused;
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
        TaskMaker1 one = new TaskMaker1(); // shared by all groups: its construction takes as long as registering every task
        setRandom(state);
        UniqueIdentifier$.MODULE$.reset();
        for (Consumer<TaskMaker1> register : groupsInOrder()) {
            Group group = new Group(register, draws, UniqueIdentifier$.MODULE$.count());
            one.tasks().clear();
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
            } catch (IOException gone) { // the parent process has ended or has closed the pipe
                Runtime.getRuntime().halt(0);
            }
        });
        reader.setDaemon(true);
        reader.start();

        loadEnvObject();
        Simulator simulator = new Simulator();
        out.writeInt(1); // an unrequested reply signals that the process is ready
        out.writeBoolean(true);
        out.flush();
        for (int practised = 0, patience = 0; true; ) {
            byte[] asked = practised < PRACTICE ? requests.poll(patience, TimeUnit.MILLISECONDS) : requests.take();
            if (asked == null) {
                simulator.practise(practised++);
                patience = 0;
                continue;
            }
            patience = IDLE_MS;
            DataInputStream request = new DataInputStream(new ByteArrayInputStream(asked));
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

    /** Starts an episode of some task, so that the virtual machine compiles code before the first sessions need it. */
    private void practise(int number) throws IOException {
        String[] tasks = maker.getTaskList();
        Session session = begin(tasks[number % tasks.length], 0);
        for (String action : List.of("open door to hallway", "look in cupboard", "pick up thermometer", "go to hallway", "inventory", "wait1")) {
            step(session, action);
        }
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
        if (operation == 'b') { // begin: session, task, variation -> description, observation, score, completed, refused
            int id = request.readInt();
            Session session = begin(read(request), request.readInt());
            sessions.put(id, session);
            write(results, session.world.getTaskDescription());
            writeState(results, session);
        } else if (operation == 's') { // step: session, action -> observation, score, completed, refused
            Session session = session(request);
            step(session, read(request));
            writeState(results, session);
        } else if (operation == 'h') { // hints: session -> possible actions, possible objects, progress
            Session session = session(request);
            enter(session); // without saving the state afterwards: object names are random, and hints must not change the episode
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

    /** Works like PythonInterface.load, but registers only the required group of tasks. Registration takes most of the time. */
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
        session.actions = JudgedActions.of(session.world);
        leave(session);
        return session;
    }

    /** Works like PythonInterface.step, without records and printing. */
    private void step(Session session, String action) throws IOException {
        String word = action.trim().toLowerCase();
        session.refused = false;
        enter(session);
        if (word.equals("help")) {
            session.observation = "Possible actions: \n\t" + String.join("\n\t", session.world.getPossibleActions());
        } else if (word.equals("objects")) { // this command chooses among their names at random
            session.observation = "Possible object references: \n\t" + String.join("\n\t", session.world.getPossibleObjects());
        } else if (word.equals("task")) {
            session.observation = "Task description:\n" + session.world.getTaskDescription();
        } else {
            session.actions.succeeded = false;
            Tuple3<String, Object, Object> result = session.world.step(action);
            if (session.world.isInErrorState()) {
                throw new IOException(session.world.getErrorStateMessage());
            }
            session.observation = result._1().isEmpty() ? UNKNOWN : result._1();
            session.score = (Double) result._2();
            session.completed = (Boolean) result._3();
            session.refused = !session.actions.succeeded && !session.world.inputParser().isInAmbiguousState();
        }
        leave(session);
    }

    /** Runs the package's own expert in a session and records its actions. */
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
            long planning = random.get(); // the expert's random draws must not affect the session
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
        Random$.MODULE$.setSeed(state ^ 0x5DEECE66DL); // java.util.Random scrambles seeds by this constant
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
        results.writeBoolean(session.refused);
    }

    /** The simulator's action handler. It also records whether the last action was performed, which the package discards. */
    private static final class JudgedActions extends ActionHandler {
        boolean succeeded;

        /** Replaces a session's handler by one of this class. */
        static JudgedActions of(AgentInterface world) {
            JudgedActions judged = new JudgedActions();
            try {
                for (Field field : ActionHandler.class.getDeclaredFields()) {
                    if (!Modifier.isStatic(field.getModifiers())) {
                        field.setAccessible(true);
                        field.set(judged, field.get(world.actionHandler()));
                    }
                }
                Field handler = AgentInterface.class.getDeclaredField("actionHandler");
                handler.setAccessible(true);
                handler.set(world, judged);
            } catch (ReflectiveOperationException missing) {
                throw new IllegalStateException(missing);
            }
            return judged;
        }

        /** Works like the package's method. A valid disconnect counts as performed, although the package reports no success. */
        @Override
        public String runQueuedActions() {
            Action[] queued = new Action[queuedActions().size()];
            queuedActions().copyToArray(queued);
            actionHistory().$plus$eq(queued);
            queuedActions().clear();
            StringJoiner said = new StringJoiner("\n");
            for (Action action : queued) {
                boolean disconnects = action instanceof ActionDisconnectElectrical
                    && ActionDisconnectElectrical$.MODULE$.isValidAction(action.assignments())._2$mcZ$sp();
                Tuple2<String, Object> result = action.runAction();
                succeeded |= disconnects || result._2$mcZ$sp();
                Option<EnvObject> agent = action.assignments().get("agent");
                if (agent.isDefined() && agent.get() instanceof Agent) {
                    ((Agent) agent.get()).addActionToHistory(action);
                }
                said.add(result._1());
            }
            return said.toString();
        }
    }

    /**
     * Loads the package's EnvObject with `return (int) uuid()` as its hashCode. The package compares objects by uuid, but inherits
     * hashCode. With a constant identity hash, all objects of a set would share one bucket.
     */
    public static void loadEnvObject() throws IOException, ReflectiveOperationException {
        byte[] original;
        try (InputStream file = Simulator.class.getResourceAsStream("/scienceworld/struct/EnvObject.class")) {
            original = file.readAllBytes();
        }
        ByteBuffer type = ByteBuffer.wrap(original); // names follow the class file format (JVM specification, chapter 4)
        int constants = type.getShort(8);
        type.position(10);
        for (int index = 1; index < constants; index++) {
            int tag = type.get();
            if (tag == 5 || tag == 6) { // long and double take two entries
                index++;
            }
            skip(type, tag == 1 ? type.getShort() : tag == 5 || tag == 6 ? 8 : tag == 7 || tag == 8 || tag == 16 ? 2 : tag == 15 ? 3 : 4);
        }
        int constantsEnd = type.position();
        int thisClass = type.getShort(constantsEnd + 2);
        skip(type, 6);
        skip(type, 2 * type.getShort()); // interfaces
        for (int fields = type.getShort(); fields > 0; fields--) {
            skipMember(type);
        }

        ByteArrayOutputStream added = new ByteArrayOutputStream();
        Constants more = new Constants(new DataOutputStream(added), constants);
        ByteArrayOutputStream methodsAdded = new ByteArrayOutputStream();
        DataOutputStream method = new DataOutputStream(methodsAdded);
        int uuid = more.member(thisClass, "uuid", "()J");
        int[] code = {0x2a, 0xb6, uuid >> 8, uuid, 0x88, 0xac}; // aload_0, invokevirtual uuid, l2i, ireturn
        for (int value : new int[] {1, more.text("hashCode"), more.text("()I"), 1, more.text("Code")}) { // public, one attribute
            method.writeShort(value);
        }
        method.writeInt(12 + code.length);
        method.writeShort(2); // stack
        method.writeShort(1); // locals
        method.writeInt(code.length);
        for (int value : code) {
            method.writeByte(value);
        }
        method.writeInt(0); // no exceptions, no attributes

        int methodsAt = type.position();
        int methods = type.getShort();
        for (int number = 0; number < methods; number++) {
            skipMember(type);
        }
        int methodsEnd = type.position();

        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream patched = new DataOutputStream(bytes);
        patched.write(original, 0, 8);
        patched.writeShort(more.next);
        patched.write(original, 10, constantsEnd - 10);
        added.writeTo(patched);
        patched.write(original, constantsEnd, methodsAt - constantsEnd);
        patched.writeShort(methods + 1);
        patched.write(original, methodsAt + 2, methodsEnd - methodsAt - 2);
        methodsAdded.writeTo(patched);
        patched.write(original, methodsEnd, original.length - methodsEnd);

        ClassLoader loader = ClassLoader.getSystemClassLoader();
        Class<?> neighbour = Class.forName("scienceworld.struct.EnvObject$", false, loader);
        MethodHandles.privateLookupIn(neighbour, MethodHandles.lookup()).defineClass(bytes.toByteArray());
    }

    /** Constants to append to those of a class file. */
    private static final class Constants {
        private final DataOutputStream out;
        int next;

        Constants(DataOutputStream out, int next) {
            this.out = out;
            this.next = next;
        }

        int text(String text) throws IOException {
            out.writeByte(1);
            out.writeUTF(text);
            return next++;
        }

        /** A method of a class. */
        int member(int owner, String name, String descriptor) throws IOException {
            return pair(10, owner, pair(12, text(name), text(descriptor)));
        }

        private int pair(int tag, int first, int second) throws IOException {
            out.writeByte(tag);
            out.writeShort(first);
            out.writeShort(second);
            return next++;
        }
    }

    private static void skipMember(ByteBuffer type) {
        skip(type, 6);
        for (int attributes = type.getShort(); attributes > 0; attributes--) {
            skip(type, 2);
            skip(type, type.getInt());
        }
    }

    private static void skip(ByteBuffer type, int bytes) {
        type.position(type.position() + bytes);
    }

    /** Discards the simulator's output. */
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
